/* AMX on a CPU without it. Its instructions raise SIGILL there, and the handler computes them (Intel 64 and IA-32
 * Architectures Software Developer's Manual, volume 2: LDTILECFG, TDPBF16PS, TILELOADD, TILERELEASE, TILESTORED and
 * TILEZERO; chapter 2 for how operands in memory are encoded). Slow; for tests. */

#define _GNU_SOURCE
#include <pmmintrin.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, BYTES = 64 };

static struct sigaction before;
static __thread struct {
    uint8_t numbers[TILES][ROWS][BYTES];
    uint8_t rows[TILES];
    uint16_t bytes[TILES]; /* of a row; 0: not configured */
} tiles;

/* By the number that an instruction has. */
static const int REGISTERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

typedef struct {
    uint8_t *base;
    int64_t stride; /* index times scale */
    int bytes;      /* of ModRM, SIB and displacement */
} Operand;

static int64_t displacement(const uint8_t *from, int bytes) {
    int32_t wide = 0;
    memcpy(&wide, from, bytes);
    return bytes == 1 ? (int8_t)wide : wide;
}

/* The operand in memory, from its ModRM byte on. */
static Operand operand(const uint8_t *code, const greg_t *registers, int index_bit, int base_bit) {
    const int mode = code[0] >> 6;
    int base = code[0] & 7, bytes = 1, offset = mode == 1 ? 1 : mode == 2 ? 4 : 0;
    Operand found = {0};
    if (base == 4) {
        const int sib = code[bytes++], index = (sib >> 3 & 7) | index_bit << 3;
        base = sib & 7;
        if (index != 4)
            found.stride = registers[REGISTERS[index]] * (1 << (sib >> 6));
    } else if (base == 5 && mode == 0) { /* relative to the next instruction */
        found.bytes = 5;
        found.base = (uint8_t *)code + 5 + displacement(code + 1, 4);
        return found;
    }
    int64_t address = 0;
    if (base == 5 && mode == 0)
        offset = 4; /* no base */
    else
        address = registers[REGISTERS[base | base_bit << 3]];
    found.base = (uint8_t *)(address + displacement(code + bytes, offset));
    found.bytes = bytes + offset;
    return found;
}

/* The first and the second bf16 number of a pair. */
static float first_of(uint32_t pair) {
    float wide;
    pair <<= 16;
    memcpy(&wide, &pair, sizeof wide);
    return wide;
}

static float second_of(uint32_t pair) {
    float wide;
    pair &= 0xffff0000;
    memcpy(&wide, &pair, sizeof wide);
    return wide;
}

/* False where the instruction faults. */
static int add_products(int to, int left, int right) {
    const int pairs = tiles.bytes[left] / 4, columns = tiles.bytes[to] / 4;
    if (!columns || !pairs || to == left || to == right || left == right || pairs != tiles.rows[right] ||
        tiles.rows[to] != tiles.rows[left] || tiles.bytes[to] != tiles.bytes[right])
        return 0;
    const unsigned state = _mm_getcsr();
    _mm_setcsr(_MM_MASK_MASK | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON); /* rounds to nearest */
    for (int row = 0; row < tiles.rows[to]; row++) {
        float even[BYTES / 4] = {0}, odd[BYTES / 4] = {0}, sums[BYTES / 4];
        for (int pair = 0; pair < pairs; pair++) {
            uint32_t one, others[BYTES / 4];
            memcpy(&one, tiles.numbers[left][row] + 4 * pair, sizeof one);
            memcpy(others, tiles.numbers[right][pair], sizeof others);
            /* all columns, whose number the compiler knows, so that it uses whole registers */
            for (int i = 0; i < BYTES / 4; i++) {
                even[i] = __builtin_fmaf(first_of(one), first_of(others[i]), even[i]);
                odd[i] = __builtin_fmaf(second_of(one), second_of(others[i]), odd[i]);
            }
        }
        memcpy(sums, tiles.numbers[to][row], sizeof sums);
        for (int i = 0; i < columns; i++)
            sums[i] += even[i] + odd[i];
        memcpy(tiles.numbers[to][row], sums, sizeof sums);
    }
    _mm_setcsr(state);
    return 1;
}

static int configure(const uint8_t *from) {
    memset(&tiles, 0, sizeof tiles);
    for (int i = 0; from[0] == 1 && i < TILES; i++) {
        memcpy(&tiles.bytes[i], from + 16 + 2 * i, 2);
        tiles.rows[i] = from[48 + i];
        if (tiles.bytes[i] > BYTES || tiles.rows[i] > ROWS || !tiles.bytes[i] != !tiles.rows[i])
            return 0;
    }
    return from[0] <= 1;
}

static int load(int tile, Operand from) {
    memset(tiles.numbers[tile], 0, sizeof tiles.numbers[tile]);
    for (int row = 0; row < tiles.rows[tile]; row++)
        memcpy(tiles.numbers[tile][row], from.base + row * from.stride, tiles.bytes[tile]);
    return tiles.rows[tile] > 0;
}

static int store(int tile, Operand to) {
    for (int row = 0; row < tiles.rows[tile]; row++)
        memcpy(to.base + row * to.stride, tiles.numbers[tile][row], tiles.bytes[tile]);
    return tiles.rows[tile] > 0;
}

static int zero(int tile) {
    memset(tiles.numbers[tile], 0, sizeof tiles.numbers[tile]);
    return tiles.rows[tile] > 0;
}

/* Bytes of the instruction, 0 if it is another one. */
static int execute(const uint8_t *code, const greg_t *registers) {
    enum { NONE, P66, PF3, PF2 };
    if (code[0] != 0xc4 || (code[1] & 0x9f) != 0x82 || code[2] & 0x84) /* VEX.128.0F38.W0 */
        return 0;
    const int kind = code[3] << 4 | (code[2] & 3), in_register = code[4] >> 6 == 3, tile = code[4] >> 3 & 7;
    const Operand at = in_register ? (Operand){0, 0, 1} : operand(code + 4, registers, !(code[1] & 0x40), !(code[1] & 0x20));
    int done = 0;
    if (in_register) {
        if (kind == (0x49 << 4 | NONE))
            done = configure((const uint8_t[64]){0}); /* releases them */
        else if (kind == (0x49 << 4 | PF2))
            done = zero(tile);
        else if (kind == (0x5c << 4 | PF3))
            done = add_products(tile, code[4] & 7, ~code[2] >> 3 & 15);
    } else if (kind == (0x49 << 4 | NONE))
        done = configure(at.base);
    else if (kind == (0x4b << 4 | PF2) || kind == (0x4b << 4 | P66))
        done = load(tile, at);
    else if (kind == (0x4b << 4 | PF3))
        done = store(tile, at);
    return done ? 4 + at.bytes : 0;
}

static void on_illegal(int signal, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    int bytes = execute((const uint8_t *)registers[REG_RIP], registers);
    if (!bytes)
        sigaction(SIGILL, &before, 0); /* the instruction raises it again */
    for (; bytes; bytes = execute((const uint8_t *)registers[REG_RIP], registers))
        registers[REG_RIP] += bytes;
    (void)signal, (void)info;
}

__attribute__((constructor)) static void start(void) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_NODEFER};
    action.sa_sigaction = on_illegal;
    sigaction(SIGILL, &action, &before);
}
