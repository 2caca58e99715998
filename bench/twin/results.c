// SPDX-License-Identifier: GPL-2.0
/*
 * What came of the traffic, as JSON; tests/results.schema.json has the schema.
 */

#include "krdma_smoke_c.h"

#include <linux/mm.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/utsname.h>

static const char * const state_names[] = {
	[STATE_RUNNING] = "running",
	[STATE_SUCCESS] = "success",
	[STATE_FAILED] = "failed",
	[STATE_SKIPPED] = "skipped",
	[STATE_STOPPED] = "stopped",
};

const char *state_name(enum state state)
{
	return state_names[state];
}

int results_init(struct results *results, const struct settings *settings)
{
	mutex_init(&results->lock);
	results->context = settings->context;
	results->depth = min(settings->depth, settings->messages);
	results->lines = kvcalloc(LINES_MAX, sizeof(*results->lines),
				  GFP_KERNEL);
	return results->lines ? 0 : -ENOMEM;
}

void measured_destroy(struct measured *measured)
{
	kvfree(measured->latencies.buckets);
	kvfree(measured->deliveries.buckets);
}

void results_destroy(struct results *results)
{
	struct line *line;

	for (line = results->lines; line < results->lines + results->n_lines;
	     line++) {
		if (line->outcome == OUTCOME_GOOD)
			measured_destroy(&line->measured);
		else if (line->outcome == OUTCOME_BAD ||
			 line->outcome == OUTCOME_SKIPPED)
			kfree(line->reason);
	}

	kvfree(results->lines);
	kfree(results->ends[HERE].device);
	kfree(results->ends[THERE].device);
	kfree(results->reason);
}

/* Also again, for ends that have changed. */
void results_begin(struct results *results, const struct end ends[SIDES])
{
	guard(mutex)(&results->lock);
	kfree(results->ends[HERE].device);
	kfree(results->ends[THERE].device);
	memcpy(results->ends, ends, sizeof(results->ends));
	results->has_ends = true;
}

/* What the line refers to belongs to the results from now on. */
void results_add(struct results *results, const struct line *line)
{
	guard(mutex)(&results->lock);

	/* There is room. */
	results->lines[results->n_lines++] = *line;
}

void results_end(struct results *results, enum state state, char *reason)
{
	guard(mutex)(&results->lock);
	results->state = state;
	results->reason = reason;
}

/* Writes a string of JSON, whatever is in it. */
static void write_text(struct seq_file *seq, const char *text)
{
	seq_putc(seq, '"');
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			seq_printf(seq, "\\%c", *text);
		else if ((u8)*text < 0x20)
			seq_printf(seq, "\\u%04x", (u8)*text);
		else
			seq_putc(seq, *text);
	}
	seq_putc(seq, '"');
}

static void write_summary(struct seq_file *seq, const struct summary *summary)
{
	const struct bucket *bucket = summary->buckets;
	size_t i;

	seq_printf(seq,
		   "{\"min\": %llu, \"p50\": %llu, \"p99\": %llu, \"p99.9\": %llu, \"max\": %llu, \"histogram\": [",
		   summary->min, summary_percentile(summary, 500),
		   summary_percentile(summary, 990),
		   summary_percentile(summary, 999), summary->max);
	for (i = 0; i < summary->n_buckets; i++, bucket++)
		seq_printf(seq, "%s[%llu, %llu, %u]", i ? ", " : "",
			   bucket->lower, bucket->upper, bucket->count);
	seq_puts(seq, "]}");
}

static void write_measured(struct seq_file *seq,
			   const struct measured *measured)
{
	seq_printf(seq, "\"elapsed_ns\": %llu, \"latency_ns\": ",
		   measured->elapsed);
	write_summary(seq, &measured->latencies);
	if (measured->is_received) {
		seq_puts(seq, ", \"delivery_ns\": ");
		write_summary(seq, &measured->deliveries);
	}
}

void results_write(struct results *results, struct seq_file *seq)
{
	const struct end *end;
	const struct line *line;
	unsigned int i;

	guard(mutex)(&results->lock);

	seq_puts(seq, "{\n  \"version\": 1,\n  \"kernel\": ");
	write_text(seq, init_utsname()->release);
	seq_puts(seq, ",\n  \"ib_core\": ");
	write_text(seq, built_for());
	seq_printf(seq,
		   ",\n  \"poll\": \"%s\",\n  \"depth\": %u,\n  \"state\": \"%s\"",
		   results->context == IB_POLL_DIRECT ? "direct" : "workqueue",
		   results->depth, state_name(results->state));
	if (results->reason) {
		seq_puts(seq, ",\n  \"reason\": ");
		write_text(seq, results->reason);
	}

	seq_puts(seq, ",\n  \"ends\": [");
	for (i = 0; results->has_ends && i < SIDES; i++) {
		end = &results->ends[i];
		seq_printf(seq, "%s\n    {\"device\": ", i ? "," : "");
		write_text(seq, end->device);
		seq_puts(seq, ", \"firmware\": ");
		write_text(seq, end->firmware);
		seq_printf(seq,
			   ", \"port\": %u, \"mtu\": %u, \"gid_index\": %u, \"gid\": \"%pI6\"}",
			   end->port, end->mtu, end->address.gid_index,
			   end->address.gid.raw);
	}

	seq_puts(seq, "\n  ],\n  \"tests\": [");
	for (i = 0; i < results->n_lines; i++) {
		line = &results->lines[i];
		seq_printf(seq, "%s\n    {\"test\": \"%s\", ", i ? "," : "",
			   line->test);
		if (line->connections)
			seq_printf(seq, "\"connections\": %u, ",
				   line->connections);
		else
			seq_printf(seq, "\"size\": %u, \"messages\": %u, ",
				   line->size, line->messages);
		switch (line->outcome) {
		case OUTCOME_GOOD:
			write_measured(seq, &line->measured);
			break;
		case OUTCOME_CONNECTED:
			seq_printf(seq, "\"elapsed_ns\": %llu", line->elapsed);
			break;
		case OUTCOME_FLUSHED:
			seq_printf(seq, "\"flushed\": %u", line->flushed);
			break;
		case OUTCOME_BAD:
			seq_puts(seq, "\"error\": ");
			write_text(seq, line->reason);
			break;
		case OUTCOME_SKIPPED:
			seq_puts(seq, "\"skipped\": ");
			write_text(seq, line->reason);
			break;
		}
		seq_putc(seq, '}');
	}
	seq_puts(seq, "\n  ]\n}\n");
}
