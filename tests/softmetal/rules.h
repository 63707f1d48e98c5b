/* rules.h - every rule that softmetal enforces

   A broken rule prints "softmetal: <rule>: <text> (<detail>)" on stderr and aborts. The table is the one place where a
   rule's name is spelled: the code refers to it as SM_RULE_<identifier>, the tests read the printed name. */

/* X(identifier, "name", "text") */
#define SM_RULES(X)                                                                               \
    /* command buffers */                                                                         \
    X(HANDLER_AFTER_COMMIT, "handler-after-commit", "handlers are added before commit")           \
    X(DOUBLE_COMMIT, "double-commit", "a command buffer is committed once")                       \
    X(COMMIT_WITH_ENCODER, "commit-with-active-encoder", "endEncoding comes before commit")       \
    X(ENCODE_AFTER_COMMIT, "encode-after-commit", "nothing is encoded after commit")              \
    X(WAIT_BEFORE_COMMIT, "wait-before-commit", "only a committed command buffer can be waited for") \
    X(WAIT_IN_HANDLER, "wait-in-own-handler",                                                     \
      "a handler cannot wait for a buffer whose handlers need the same thread")                   \
    X(ENQUEUED_NOT_COMMITTED, "enqueued-never-committed",                                         \
      "an enqueued buffer that is dropped blocks its queue for ever")                             \
    X(WOULD_BLOCK, "command-buffer-would-block",                                                  \
      "commandBuffer would block: the queue is full and the manual clock does not move by itself") \
    X(QUEUE_FULL_BLOCK, "queue-full-block",                                                       \
      "commandBuffer would block: the queue is full, and a test asked that nothing blocks for it") \
    /* encoders */                                                                                \
    X(SECOND_ENCODER, "second-active-encoder", "one encoder at a time")                           \
    X(EVENT_WITH_ENCODER, "event-with-active-encoder", "events are encoded between encoders")     \
    X(DOUBLE_END, "double-end-encoding", "endEncoding is sent once")                              \
    X(ENCODE_AFTER_END, "encode-after-end", "nothing is encoded after endEncoding")               \
    X(ENCODER_NOT_ENDED, "encoder-not-ended", "an encoder was dropped without endEncoding")       \
    X(BLIT_RANGE, "blit-out-of-range", "a blit stays inside its buffers")                         \
    X(BAD_BINDING, "bad-binding", "indexes and offsets of a binding stay in their limits")        \
    X(NO_PIPELINE, "no-pipeline", "a dispatch needs a pipeline state")                            \
    /* arguments */                                                                               \
    X(NIL_ARGUMENT, "nil-argument", "Metal requires an object here")                              \
    X(WRONG_CLASS, "wrong-class", "the argument is an object of another kind")                    \
    X(OTHER_DEVICE, "other-device", "the object belongs to another device")                       \
    X(BAD_LENGTH, "bad-length", "a buffer has at least one byte, a queue at least one buffer")    \
    X(BAD_LAYER, "bad-layer", "a layer has two or three drawables of a pixel format that it can show") \
    X(FRAMEBUFFER_ONLY, "framebuffer-only",                                                       \
      "a texture of a layer is read and written only where framebufferOnly is NO")                \
    X(HIDDEN_SELECTOR, "hidden-selector", "the selector was hidden, so it must not be sent")      \
    X(UNKNOWN_MESSAGE, "unknown-message", "softmetal has no method for the message")              \
    /* memory */                                                                                  \
    X(OVER_RELEASE, "over-release", "more releases than retains")                                 \
    X(MESSAGE_TO_FREED, "message-to-freed", "the object is gone")                                 \
    X(NO_POOL, "autorelease-without-pool", "an autoreleased object needs a pool on this thread")  \
    X(POOL_ORDER, "pool-order", "pools are popped innermost first, on the thread of their push")  \
    X(DESTROYED_IN_USE, "destroyed-in-use", "work that was committed without a reference still needs the object") \
    X(BAD_BLOCK, "bad-block", "a block has a class of the runtime's and the flags that go with it") \
    X(BLOCK_CHANGED, "block-changed", "a block was freed or rewritten before Metal released it")  \
    /* dispatch queues */                                                                         \
    X(DISPATCH_ATTRIBUTE, "dispatch-attribute",                                                   \
      "queues are serial: the attribute is NULL or one of a class of service")                    \
    X(EXIT_IN_FUNCTION, "exit-in-function", "a dispatched function returns: its thread is libdispatch's") \
    /* locks */                                                                                   \
    X(LOCKED_TWICE, "locked-twice", "an os_unfair_lock cannot be taken again by its owner")       \
    X(UNLOCKED_BY_OTHER, "unlocked-by-other", "an os_unfair_lock is let go by its owner")         \
    /* the control panel */                                                                       \
    X(STEP_NOT_DUE, "step-not-due", "this transition is not due")                                 \
    X(STEP_REAL_CLOCK, "step-on-real-clock", "only the manual clock is stepped")                  \
    X(RESET_WITH_WORK, "reset-with-work", "a command buffer is committed and not terminal")       \
    X(PANEL_MISUSE, "panel-misuse", "the control panel was used wrongly")                         \
    /* softmetal itself */                                                                        \
    X(CLASS_TAKEN, "class-taken", "the classes of Metal are softmetal's, so no other Metal may be loaded") \
    X(INTERNAL, "internal", "softmetal could not go on")

/* The rules of Metal 4; some of those above hold there too. */
#define SM_RULES_OF_METAL4(X)                                                                     \
    /* command buffers and allocators */                                                          \
    X(BEGIN_WHILE_RECORDING, "begin-while-recording", "endCommandBuffer comes before the next begin") \
    X(ALLOCATOR_TAKEN, "allocator-taken", "one buffer at a time records into an allocator")       \
    X(RESET_IN_USE, "allocator-reset-in-use", "a run still uses what the allocator holds")        \
    X(RESET_WHILE_RECORDING, "allocator-reset-while-recording", "a buffer records into the allocator") \
    X(END_WITHOUT_BEGIN, "end-without-begin", "only a buffer that records is ended")              \
    X(END_WITH_ENCODER, "end-with-active-encoder", "endEncoding comes before endCommandBuffer")   \
    X(ENCODER_OUTSIDE, "encoder-outside-recording", "encoders come between begin and end")        \
    X(UNKNOWN_ADDRESS, "unknown-gpu-address", "an argument table names memory that a living buffer has") \
    /* commits */                                                                                 \
    X(EMPTY_COMMIT, "empty-commit", "a commit has at least one buffer")                           \
    X(NIL_IN_COMMIT, "nil-in-commit", "every place of the array has a buffer")                    \
    X(TWICE_IN_COMMIT, "buffer-twice-in-commit", "a buffer is in an array once")                  \
    X(COMMIT_NOT_ENDED, "commit-not-ended", "a recording is ended, and committed once")           \
    X(RECORDING_RESET, "recording-reset", "the allocator of a recording is not reset before its commit") \
    X(OPTIONS_SHARED, "options-on-two-threads", "commit options belong to one thread at a time")  \
    X(FEEDBACK_QUEUE, "feedback-queue-not-serial", "the feedback queue is a serial dispatch queue")
