// SPDX-License-Identifier: GPL-2.0
/*
 * What the user wants of the traffic.
 */

#include "krdma_smoke_c.h"

#include <linux/ctype.h>
#include <linux/overflow.h>

#define CONNECTIONS_MAX	1024

/* Parses a decimal number without a sign; returns what comes behind it. */
static const char *parse_number(const char *text, u32 *number)
{
	*number = 0;
	if (!isdigit(*text))
		return NULL;

	for (; isdigit(*text); text++) {
		if (check_mul_overflow(*number, 10U, number) ||
		    check_add_overflow(*number, (u32)(*text - '0'), number))
			return NULL;
	}

	return text;
}

static int parse_sizes(struct settings *settings, const char *text)
{
	unsigned int number = 0;
	u32 size;

	for (;;) {
		number++;
		text = parse_number(text, &size);
		if (!text || (*text && *text != ',')) {
			pr_err("sizes=: entry %u is not a number of bytes, such as in 8,4096\n",
			       number);
			return -EINVAL;
		}
		if (number > SIZES_MAX) {
			pr_err("sizes=: there are more than %u\n", SIZES_MAX);
			return -EINVAL;
		}

		settings->sizes[settings->n_sizes++] = size;
		if (!*text++)
			return 0;
	}
}

static int check_gid_index(const char *parameter, int index)
{
	if (index < -1 || index > U8_MAX) {
		pr_err("%s=%d: there are 0 to 255, and -1 for any\n",
		       parameter, index);
		return -EINVAL;
	}

	return 0;
}

int settings_parse(struct settings *settings, const char *sizes,
		   const char *poll)
{
	int ret;

	if (!settings->depth) {
		pr_err("depth=0: at least one message has to be outstanding\n");
		return -EINVAL;
	}

	if (settings->connections > CONNECTIONS_MAX) {
		pr_err("connections=%u: there can be 0 to %u\n",
		       settings->connections, CONNECTIONS_MAX);
		return -EINVAL;
	}

	if (!strcmp(poll, "direct")) {
		settings->context = IB_POLL_DIRECT;
	} else if (!strcmp(poll, "workqueue")) {
		settings->context = IB_POLL_WORKQUEUE;
	} else {
		pr_err("poll= must be direct or workqueue\n");
		return -EINVAL;
	}

	ret = check_gid_index("gid_index", settings->ends[HERE].gid_index);
	if (!ret)
		ret = check_gid_index("peer_gid_index",
				      settings->ends[THERE].gid_index);
	if (ret)
		return ret;

	settings->is_bounded = !strcmp(sizes, SIZES_DEFAULT);
	return parse_sizes(settings, sizes);
}
