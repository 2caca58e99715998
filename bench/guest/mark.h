/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The instruction by which a guest speaks to the plugin: a NOP of eight bytes,
 * whose operand is never looked at.
 */

#ifndef MARK_H
#define MARK_H

/* Read what is to be counted. */
#define MARK_LOAD	0x6b726400

/* Write down what was counted, for one reason or another. */
#define MARK_USER	0x6b726401
#define MARK_OPEN	0x6b726402
#define MARK_CLOSE	0x6b726403
#define MARK_POST	0x6b726404
#define MARK_LAST	MARK_POST

/* nopl NUMBER(%rax,%rax,1) */
#define MARK_OPCODE	0x0f, 0x1f, 0x84, 0x00

#define MARK(number)							\
	__asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00\n.long %c0"	\
			 : : "i"(number) : "memory")

#endif
