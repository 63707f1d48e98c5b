/* GNUstep's headers include this file when blocks are on; the GNU runtime does not ship one. */
#ifndef SOFTMETAL_OBJC_BLOCKS_RUNTIME_H
#define SOFTMETAL_OBJC_BLOCKS_RUNTIME_H
#include <Block.h>
#endif
