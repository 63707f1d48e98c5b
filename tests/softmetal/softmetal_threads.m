/* softmetal_threads.m - starting threads */
#import "softmetal_internal.h"

void sm_thread_start(void *(*body)(void *), void *argument)
{
    pthread_attr_t attributes;
    pthread_t started;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&started, &attributes, body, argument);
    pthread_attr_destroy(&attributes);
    SM_REQUIRE(failed == 0, INTERNAL, "no more threads");
}
