// SPDX-License-Identifier: GPL-2.0
/*
 * A plugin for QEMU's emulation that counts how often each instruction of the
 * guest is executed, of its kernel modules and of the ranges that a file names.
 *
 *     -plugin count.so,ranges=FILE,out=FILE
 *
 * The file of ranges has lines of two hexadecimal numbers, START and END. It is
 * read when the guest says so (guest/mark.h). What was counted since the last time
 * is written down when the guest says so, too, as lines of address and count
 * behind a line `dump NUMBER`.
 *
 * What was translated before it was in a range is not counted. An instruction
 * with a REP prefix is counted anew for each of its rounds. Whoever reads the
 * counts has to know both.
 */

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../guest/mark.h"

/*
 * Of QEMU's plugin API, version 4 as of QEMU 10.0, which has no package with
 * its header.
 */
#define API_VERSION	4
#define EXPORT		__attribute__((visibility("default")))

typedef uint64_t plugin_id;

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_scoreboard;

struct counter {
	struct qemu_plugin_scoreboard *scoreboard;
	size_t offset;
};

typedef void (*translated_cb)(plugin_id id, struct qemu_plugin_tb *tb);
typedef void (*executed_cb)(unsigned int cpu, void *data);

enum { CB_NO_REGS };
enum { INLINE_ADD_U64 };

extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id,
						  translated_cb callback);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *,
						   executed_cb callback,
						   int flags, void *data);
extern void qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
	struct qemu_plugin_insn *insn, int op, struct counter counter,
	uint64_t amount);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
extern struct qemu_plugin_insn *
qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
extern size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn,
				    void *to, size_t size);
extern struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t size);
extern uint64_t qemu_plugin_u64_sum(struct counter counter);

EXPORT int qemu_plugin_version = API_VERSION;

/* More instructions than are ever executed there. */
#define SLOTS		(1u << 20)
#define SLOTS_SHIFT	44
#define RANGES_MAX	4096

/* Where x86-64 has the kernel's modules. */
#define MODULES_START	0xffffffffa0000000u
#define MODULES_END	0xffffffffff000000u

struct range {
	uint64_t start;
	uint64_t end;
};

static const char *ranges_path, *out_path;
static struct range ranges[RANGES_MAX];
static size_t n_ranges;

/* A hash table of addresses; the counter of each is in the same place. */
static uint64_t addresses[SLOTS];
static uint64_t written[SLOTS];
static struct qemu_plugin_scoreboard *scoreboard;

static void fail(const char *what)
{
	perror(what);
	abort();
}

static struct counter counter_of(size_t slot)
{
	return (struct counter){ scoreboard, slot * sizeof(uint64_t) };
}

static size_t slot_of(uint64_t address)
{
	size_t slot = (address * 0x9e3779b97f4a7c15u) >> SLOTS_SHIFT;

	while (addresses[slot] && addresses[slot] != address)
		slot = (slot + 1) % SLOTS;
	addresses[slot] = address;
	return slot;
}

static bool is_counted(uint64_t address)
{
	size_t i;

	if (address >= MODULES_START && address < MODULES_END)
		return true;

	for (i = 0; i < n_ranges; i++) {
		if (address >= ranges[i].start && address < ranges[i].end)
			return true;
	}

	return false;
}

static void load(unsigned int cpu, void *data)
{
	FILE *file = fopen(ranges_path, "r");
	uint64_t start, end;
	char line[128];

	(void)cpu;
	(void)data;
	if (!file)
		fail(ranges_path);

	n_ranges = 0;
	while (fgets(line, sizeof(line), file)) {
		if (n_ranges == RANGES_MAX ||
		    sscanf(line, "%" SCNx64 " %" SCNx64, &start, &end) != 2)
			abort();
		ranges[n_ranges++] = (struct range){ start, end };
	}
	fclose(file);
}

static void dump(unsigned int cpu, void *data)
{
	FILE *file = fopen(out_path, "a");
	uint64_t count;
	size_t slot;

	(void)cpu;
	if (!file)
		fail(out_path);

	fprintf(file, "dump %lu\n", (unsigned long)(uintptr_t)data);
	for (slot = 0; slot < SLOTS; slot++) {
		if (!addresses[slot])
			continue;
		count = qemu_plugin_u64_sum(counter_of(slot));
		if (count == written[slot])
			continue;
		fprintf(file, "%" PRIx64 " %" PRIu64 "\n", addresses[slot],
			count - written[slot]);
		written[slot] = count;
	}
	if (fclose(file))
		fail(out_path);
}

/* Returns the number of a mark, or 0. */
static uint32_t mark_of(const struct qemu_plugin_insn *insn)
{
	static const uint8_t opcode[] = { MARK_OPCODE };
	uint8_t bytes[8];
	uint32_t number;

	if (qemu_plugin_insn_data(insn, bytes, sizeof(bytes)) != sizeof(bytes) ||
	    memcmp(bytes, opcode, sizeof(opcode)))
		return 0;

	memcpy(&number, bytes + sizeof(opcode), sizeof(number));
	return number >= MARK_LOAD && number <= MARK_LAST ? number : 0;
}

static void translated(plugin_id id, struct qemu_plugin_tb *tb)
{
	size_t count = qemu_plugin_tb_n_insns(tb);
	struct qemu_plugin_insn *insn;
	uint64_t address;
	uint32_t mark;
	size_t i;

	(void)id;
	for (i = 0; i < count; i++) {
		insn = qemu_plugin_tb_get_insn(tb, i);
		address = qemu_plugin_insn_vaddr(insn);

		mark = mark_of(insn);
		if (mark)
			qemu_plugin_register_vcpu_insn_exec_cb(
				insn, mark == MARK_LOAD ? load : dump,
				CB_NO_REGS,
				(void *)(uintptr_t)(mark - MARK_LOAD));
		if (is_counted(address))
			qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
				insn, INLINE_ADD_U64,
				counter_of(slot_of(address)), 1);
	}
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc,
			       char **argv)
{
	int i;

	(void)info;
	for (i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "ranges=", 7))
			ranges_path = strdup(argv[i] + 7);
		else if (!strncmp(argv[i], "out=", 4))
			out_path = strdup(argv[i] + 4);
	}
	if (!ranges_path || !out_path)
		return -1;

	scoreboard = qemu_plugin_scoreboard_new(SLOTS * sizeof(uint64_t));
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
