/* What examples/with/metal-cpp takes from metal-cpp: the names, with the types that they have there. As there a method
   is a message, so that the program runs. */
#include <objc/message.h>
#include <objc/runtime.h>

extern "C" void *MTLCreateSystemDefaultDevice(void);
#ifndef __APPLE__
extern "C" void objc_msgSend(void); /* softmetal's: the GNU runtime has none */
#endif

template <typename R> R standInSend(const void *object, const char *selector)
{
    using method = R (*)(const void *, SEL);
    return reinterpret_cast<method>(reinterpret_cast<void *>(&objc_msgSend))(object, sel_registerName(selector));
}

namespace NS
{
struct AutoreleasePool {
    static AutoreleasePool *alloc()
    {
        return standInSend<AutoreleasePool *>(objc_getClass("NSAutoreleasePool"), "alloc");
    }
    AutoreleasePool *init() { return standInSend<AutoreleasePool *>(this, "init"); }
    void release() { standInSend<void>(this, "release"); }
};
} // namespace NS

namespace MTL
{
struct CommandBuffer;
struct CommandQueue {
    CommandBuffer *commandBuffer() { return standInSend<CommandBuffer *>(this, "commandBuffer"); }
    void release() { standInSend<void>(this, "release"); }
};
struct Device {
    CommandQueue *newCommandQueue() { return standInSend<CommandQueue *>(this, "newCommandQueue"); }
    void release() { standInSend<void>(this, "release"); }
};
inline Device *CreateSystemDefaultDevice() { return static_cast<Device *>(MTLCreateSystemDefaultDevice()); }
} // namespace MTL
