import asyncio
import sys
import gpusync

async def main() -> int:
    async with gpusync.Device() as device, device.queue() as queue:  # the end waits for what is in flight
        with queue.command_buffer() as buffer:
            # ... encode work into buffer.metal here, an id<MTLCommandBuffer>, with PyObjC for instance ...
            ticket = buffer.commit()
        await queue.done(ticket, timeout=1.0)  # other tasks go on; without a limit: await ticket
        return ticket

try:
    print(f"ticket {asyncio.run(main())}: done")
except gpusync.Error as error:
    print(error)
    sys.exit(1)
