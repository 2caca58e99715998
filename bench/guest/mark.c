// SPDX-License-Identifier: GPL-2.0
/*
 * Tells the plugin of QEMU's, count.c, to do something, by executing an
 * instruction that it knows and that nobody else has: a NOP with a number.
 *
 *     mark        write down what was counted
 *     mark load   read what is to be counted
 *
 * There is no C library: it is the guest's, and has to be small.
 */

#include "mark.h"

static void leave(void)
{
	__asm__ volatile("syscall" : : "a"(60L), "D"(0L) : "rcx", "r11");
	__builtin_unreachable();
}

__attribute__((used)) static void start(const long *stack)
{
	if (*stack > 1)
		MARK(MARK_LOAD);
	else
		MARK(MARK_USER);
	leave();
}

__asm__(".globl _start\n_start: mov %rsp, %rdi\ncall start\n");
