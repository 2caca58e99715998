// SPDX-License-Identifier: GPL-2.0
/*
 * The tests, one after another, between two endpoints.
 *
 * Messages go in batches: one is posted by one call, all of its completions are
 * waited for, and then it is checked. The latency of a message is the time from
 * just before its batch is posted until its completion at the requester is
 * taken from the queue.
 */

#include "krdma_smoke_c.h"

#include <linux/bitops.h>
#include <linux/delay.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/sched.h>
#include <linux/slab.h>

/* How long to wait for a port that has gone down to come up again. */
#define PATIENCE_FOR_PORT_NS	(60ULL * NSEC_PER_SEC)

/* How long to wait for what has made others fail: it may never come. */
#define PATIENCE_FOR_CAUSE_NS	NSEC_PER_SEC

/* Between looks at what comes after a failure. */
#define PAUSE_AFTER_FAILURE_MS	1

/* How many times to poll between looks at the clock. */
#define POLLS	8

/* After how many bytes of a batch to look whether to stop. */
#define BYTES	SZ_1M

/* What an atomic operation is about. */
#define WORD	sizeof(u64)

static const char * const status_names[] = {
	[IB_WC_SUCCESS] = "IB_WC_SUCCESS",
	[IB_WC_LOC_LEN_ERR] = "IB_WC_LOC_LEN_ERR",
	[IB_WC_LOC_QP_OP_ERR] = "IB_WC_LOC_QP_OP_ERR",
	[IB_WC_LOC_EEC_OP_ERR] = "IB_WC_LOC_EEC_OP_ERR",
	[IB_WC_LOC_PROT_ERR] = "IB_WC_LOC_PROT_ERR",
	[IB_WC_WR_FLUSH_ERR] = "IB_WC_WR_FLUSH_ERR",
	[IB_WC_MW_BIND_ERR] = "IB_WC_MW_BIND_ERR",
	[IB_WC_BAD_RESP_ERR] = "IB_WC_BAD_RESP_ERR",
	[IB_WC_LOC_ACCESS_ERR] = "IB_WC_LOC_ACCESS_ERR",
	[IB_WC_REM_INV_REQ_ERR] = "IB_WC_REM_INV_REQ_ERR",
	[IB_WC_REM_ACCESS_ERR] = "IB_WC_REM_ACCESS_ERR",
	[IB_WC_REM_OP_ERR] = "IB_WC_REM_OP_ERR",
	[IB_WC_RETRY_EXC_ERR] = "IB_WC_RETRY_EXC_ERR",
	[IB_WC_RNR_RETRY_EXC_ERR] = "IB_WC_RNR_RETRY_EXC_ERR",
	[IB_WC_LOC_RDD_VIOL_ERR] = "IB_WC_LOC_RDD_VIOL_ERR",
	[IB_WC_REM_INV_RD_REQ_ERR] = "IB_WC_REM_INV_RD_REQ_ERR",
	[IB_WC_REM_ABORT_ERR] = "IB_WC_REM_ABORT_ERR",
	[IB_WC_INV_EECN_ERR] = "IB_WC_INV_EECN_ERR",
	[IB_WC_INV_EEC_STATE_ERR] = "IB_WC_INV_EEC_STATE_ERR",
	[IB_WC_FATAL_ERR] = "IB_WC_FATAL_ERR",
	[IB_WC_RESP_TIMEOUT_ERR] = "IB_WC_RESP_TIMEOUT_ERR",
	[IB_WC_GENERAL_ERR] = "IB_WC_GENERAL_ERR",
};

static const char * const qp_state_names[] = {
	[IB_QPS_RESET] = "RESET",
	[IB_QPS_INIT] = "INIT",
	[IB_QPS_RTR] = "RTR",
	[IB_QPS_RTS] = "RTS",
	[IB_QPS_SQD] = "SQD",
	[IB_QPS_SQE] = "SQE",
	[IB_QPS_ERR] = "ERR",
};

static const char *qp_state_name(unsigned int state)
{
	return state < ARRAY_SIZE(qp_state_names) ? qp_state_names[state] :
						    "unknown";
}

static char *completion_text(const struct failure *failure)
{
	char number[sizeof("status 4294967295")];
	const char *status = number;

	if (failure->status < ARRAY_SIZE(status_names))
		status = status_names[failure->status];
	else
		snprintf(number, sizeof(number), "status %u", failure->status);

	return kasprintf(GFP_KERNEL,
			 "message %llu: %s completed with %s, vendor_err %u%s%s",
			 failure->message, failure->what, status,
			 failure->vendor_err,
			 failure->qp_state < 0 ? "" : ", queue pair in ",
			 failure->qp_state < 0 ? "" :
			 qp_state_name(failure->qp_state));
}

static char *immediate_text(const struct failure *failure)
{
	char sent[12] = "none", received[12] = "none";

	if (failure->has_other)
		snprintf(sent, sizeof(sent), "%#x", failure->other);
	if (failure->has_number)
		snprintf(received, sizeof(received), "%#x", failure->number);
	return kasprintf(GFP_KERNEL,
			 "message %llu: immediate %s received as %s",
			 failure->message, sent, received);
}

/* Returns why traffic ended, as a text to be freed. */
char *failure_text(const struct failure *failure)
{
	/* What is put behind a thing of the peer's, and before a parameter. */
	const char *of = failure->side == HERE ? "" : " of the peer";
	const char *device = failure->side == HERE ? "the device" : "the peer";
	const char *prefix = failure->side == HERE ? "" : "peer_";
	u64 message = failure->message;

	switch (failure->kind) {
	case FAILURE_CALL:
		return kasprintf(GFP_KERNEL, "%s failed, ret=%d",
				 failure->what, failure->error);
	case FAILURE_POST:
	case FAILURE_REFUSED:
		return kasprintf(GFP_KERNEL,
				 "ib_post_send of %s failed, ret=%d",
				 failure->what, failure->error);
	case FAILURE_COMPLETION:
		return completion_text(failure);
	case FAILURE_STATE:
		return kasprintf(GFP_KERNEL,
				 "after an error the queue pair is not in ERR, but in %s",
				 failure->qp_state < 0 ? "an unknown state" :
				 qp_state_name(failure->qp_state));
	case FAILURE_LOST:
		return kasprintf(GFP_KERNEL,
				 "message %llu: %s has not completed for %llu s",
				 message, failure->what,
				 PATIENCE_NS / NSEC_PER_SEC);
	case FAILURE_REPEATED:
		return kasprintf(GFP_KERNEL,
				 "message %llu: %s has completed more than once: a completion came again, or has the wr_cqe of another",
				 message, failure->what);
	case FAILURE_STRAY:
		return kasprintf(GFP_KERNEL,
				 "message %llu: the completion of %s names another queue pair",
				 message, failure->what);
	case FAILURE_OPCODE:
		return kasprintf(GFP_KERNEL,
				 "message %llu: completed as opcode %u",
				 message, failure->number);
	case FAILURE_LENGTH:
		return kasprintf(GFP_KERNEL, "message %llu: %u bytes received",
				 message, failure->number);
	case FAILURE_IMMEDIATE:
		return immediate_text(failure);
	case FAILURE_DATA:
		return kasprintf(GFP_KERNEL,
				 "message %llu: wrong data from offset %zu",
				 message, failure->offset);
	case FAILURE_NO_SUCH_PORT:
		return kasprintf(GFP_KERNEL,
				 "no such port, %s has %u; see %sport=",
				 device, failure->number, prefix);
	case FAILURE_PORT_DOWN:
		if (!failure->number)
			return kasprintf(GFP_KERNEL,
					 "no port%s is up; see that one has a link and is configured",
					 of);
		return kasprintf(GFP_KERNEL,
				 "port %u%s is down; see that it has a link and is configured",
				 failure->number, of);
	case FAILURE_PORT_QUERY:
		return kasprintf(GFP_KERNEL, "ib_query_port%s failed, ret=%d",
				 of, failure->error);
	case FAILURE_NO_SUCH_GID:
		return kasprintf(GFP_KERNEL,
				 "the port%s has no GID with the index %u; see %sgid_index=",
				 of, failure->number, prefix);
	case FAILURE_GID_GONE:
		return kasprintf(GFP_KERNEL,
				 "the port%s has no GID %pI6 any more", of,
				 failure->gid.raw);
	case FAILURE_NO_PATH:
		return kasprintf(GFP_KERNEL,
				 "the ports have no addresses of the same kind (such as a RoCE v2 GID with an IPv4 address each); see gid_index= and peer_gid_index=");
	case FAILURE_DEPTH:
		return kasprintf(GFP_KERNEL,
				 "depth= is more than the %u that %s can have",
				 failure->number, device);
	case FAILURE_SIZE:
		return kasprintf(GFP_KERNEL,
				 "sizes= has %u, which is more than the %u that can be sent here",
				 failure->other, failure->number);
	case FAILURE_MEMORY:
		return kasprintf(GFP_KERNEL,
				 "depth= messages of sizes= are more than %llu MiB",
				 MEMORY_MAX >> 20);
	default:
		return kstrdup("stopped", GFP_KERNEL);
	}
}

/* Returns a word of a message: different for each test, message and word. */
static u64 pattern_word(u64 number, u64 message, u64 index)
{
	u64 seed = number * 0x9e3779b97f4a7c15ULL +
		   message * 0xd6e8feb86659fd93ULL + index;
	u64 mixed = (seed ^ (seed >> 31)) * 0xbf58476d1ce4e5b9ULL;

	return mixed ^ (mixed >> 29);
}

static u32 pattern_immediate(u64 number, u64 message)
{
	return pattern_word(number, message, U64_MAX);
}

bool run_is_stopped(const struct run *run)
{
	return is_raised(run->stops[0]) || is_raised(run->stops[2]) ||
	       (run->stops[1] && is_raised(run->stops[1]));
}

static bool run_goes_on(void *run)
{
	return !run_is_stopped(run);
}

static u32 run_depth(const struct run *run)
{
	return min(run->settings->depth, run->settings->messages);
}

static bool pair_is_bad(const struct run *run)
{
	return endpoint_is_bad(run->requester) ||
	       endpoint_is_bad(run->target);
}

static bool pair_is_over(struct run *run)
{
	return pair_is_bad(run) || (endpoint_is_over(run->requester) &&
				    endpoint_is_over(run->target));
}

static bool pair_has_no_sends(struct run *run)
{
	return !endpoint_has_sends(run->requester);
}

static bool pair_is_in_error(struct run *run)
{
	return endpoint_state(run->requester) == IB_QPS_ERR;
}

static int pair_outstanding(const struct run *run)
{
	return endpoint_outstanding(run->requester) +
	       endpoint_outstanding(run->target);
}

/*
 * Takes completions until something holds; returns 1 if it does, and 0 if
 * nothing has completed for longer than @patience.
 */
static __always_inline int run_wait(struct run *run, u64 patience,
				    bool (*holds)(struct run *run),
				    struct failure *failure)
{
	unsigned int polls = 0;
	int outstanding = -1;
	bool is_late = false;
	u64 since = 0;
	u64 now;
	int left;

	for (;;) {
		endpoint_poll(run->requester);
		endpoint_poll(run->target);

		if (holds(run))
			return 1;

		if (pair_is_bad(run)) {
			/* Nothing is measured any more. */
			fsleep(PAUSE_AFTER_FAILURE_MS * USEC_PER_MSEC);
		} else {
			/* A driver that is software may need this processor. */
			schedule();
		}

		if (run->settings->context == IB_POLL_DIRECT &&
		    ++polls < POLLS)
			continue;

		polls = 0;
		if (run_is_stopped(run))
			return stopped(failure);

		now = ktime_get_ns();
		left = pair_outstanding(run);
		if (left != outstanding) {
			outstanding = left;
			since = now;
			is_late = false;
		}
		if (is_late)
			return 0;

		/* Once more: perhaps it was this thread that had to wait. */
		is_late = now - since > patience;
	}
}

/* Returns what is wrong with a completion at one end. */
static int bad_completion(const struct endpoint *end, const struct entry *entry,
			  const char *what, u64 message,
			  struct failure *failure)
{
	failure->what = what;
	failure->message = message;

	if (!entry->completions) {
		failure->kind = FAILURE_LOST;
	} else if (entry->completions > 1) {
		failure->kind = FAILURE_REPEATED;
	} else if (!entry->is_own) {
		failure->kind = FAILURE_STRAY;
	} else {
		failure->kind = FAILURE_COMPLETION;
		failure->status = entry->status;
		failure->vendor_err = entry->vendor_err;
		failure->qp_state = endpoint_state(end);
	}

	return -EIO;
}

static bool is_failed(const struct entry *entry)
{
	/* What was flushed was so for another one's failure. */
	return entry->completions && entry->status != IB_WC_SUCCESS &&
	       entry->status != IB_WC_WR_FLUSH_ERR;
}

static bool is_unexpected(const struct entry *entry)
{
	return entry->completions > 1 ||
	       (entry->completions == 1 && !entry->is_own);
}

static bool is_flushed(const struct entry *entry)
{
	return entry->completions && entry->status != IB_WC_SUCCESS;
}

static bool is_lost(const struct entry *entry)
{
	return !entry->completions;
}

static const struct entry *find_entry(const struct entry *entries, u32 count,
				      bool (*is_bad)(const struct entry *),
				      u32 *index)
{
	for (*index = 0; *index < count; (*index)++) {
		if (is_bad(&entries[*index]))
			return &entries[*index];
	}

	return NULL;
}

/* Fails with the first completion of a batch that is bad, if there is one. */
static int find_bad(const struct run *run,
		    bool (*is_bad)(const struct entry *), const char *what,
		    u64 first, struct failure *failure)
{
	const struct endpoint *here = run->requester;
	const struct endpoint *there = run->target;
	const struct entry *entry;
	u32 index;

	entry = find_entry(here->send_entries, here->prepared, is_bad, &index);
	if (entry && index < here->messages)
		return bad_completion(here, entry, what, first + index,
				      failure);
	/* It is that of the last message. */
	if (entry)
		return bad_completion(here, entry, "the read behind it",
				      first + index - 1, failure);

	entry = find_entry(there->send_entries, there->prepared, is_bad,
			   &index);
	if (entry)
		return bad_completion(there, entry, what, first + index,
				      failure);

	entry = find_entry(there->receive_entries, there->prepared_receives,
			   is_bad, &index);
	if (entry)
		return bad_completion(there, entry, "receive", first + index,
				      failure);

	return 0;
}

/* Fails with what has gone wrong by itself, and not for another's failure. */
static int find_cause(const struct run *run, const char *what, u64 first,
		      struct failure *failure)
{
	return find_bad(run, is_failed, what, first, failure) ?:
	       find_bad(run, is_unexpected, what, first, failure);
}

/* Finds out why a batch has not completed as it should. */
static int diagnose(const struct run *run, const char *what, u64 first,
		    struct failure *failure)
{
	int ret;

	ret = find_cause(run, what, first, failure) ?:
	      find_bad(run, is_flushed, what, first, failure) ?:
	      find_bad(run, is_lost, what, first, failure);
	if (ret)
		return ret;

	/* What was lost has come meanwhile. */
	failure->kind = FAILURE_LOST;
	failure->what = what;
	failure->message = first;
	return -EIO;
}

static bool pair_has_cause(struct run *run)
{
	struct failure failure;

	if (!find_cause(run, NULL, 0, &failure))
		return !pair_outstanding(run);

	return failure.kind != FAILURE_COMPLETION ||
	       failure.qp_state == IB_QPS_ERR;
}

/* Waits until everything that was posted has completed. */
static int settle(struct run *run, const char *what, u64 first,
		  struct failure *failure)
{
	int ret = run_wait(run, PATIENCE_NS, pair_is_over, failure);

	if (ret < 0)
		return ret;
	if ((ret || !pair_outstanding(run)) && !pair_is_bad(run))
		return 0;

	/*
	 * What was flushed was so for another's failure, which may be late; as
	 * may the state that goes with it.
	 */
	if (pair_is_bad(run)) {
		ret = run_wait(run, PATIENCE_FOR_CAUSE_NS, pair_has_cause,
			       failure);
		if (ret < 0)
			return ret;
	}

	return diagnose(run, what, first, failure);
}

/* Closes the target's memory, if it is open. */
static int run_close(struct run *run, struct failure *failure)
{
	static const char what[] = "IB_WR_LOCAL_INV";
	int ret;

	if (!run->is_open)
		return 0;

	run->is_open = false;
	endpoint_prepare_invalidations(run->target);
	ret = endpoint_post(run->target);
	if (ret)
		return failed_post(failure, what, false, ret);
	return settle(run, what, 0, failure);
}

/* Opens the target's memory to the requester, under new keys. */
static int run_open(struct run *run, const struct request *request,
		    struct failure *failure)
{
	static const char what[] = "IB_WR_REG_MR";
	int ret;

	ret = run_close(run, failure);
	if (ret)
		return ret;

	endpoint_prepare_registrations(run->target, request);
	ret = endpoint_post(run->target);
	/* mlx5 says EINVAL where it cannot open memory for some things. */
	if (ret)
		return failed_post(failure, what,
				   ret == -EOPNOTSUPP || ret == -EINVAL, ret);

	ret = settle(run, what, 0, failure);
	if (!ret)
		run->is_open = true;
	return ret;
}

static void prepare(struct run *run, const struct request *request, u32 count,
		    u32 size)
{
	endpoint_prepare(run->requester, request, count, size, run->target,
			 request->needs_read_behind);

	/* The data of a write does not come with the receive. */
	endpoint_prepare_receives(run->target,
				  request->is_received ? count : 0,
				  request->is_sent ? size : 0);
}

/* Looks once in BYTES; `bytes` is how many there were since the last look. */
static bool run_is_stopped_after(const struct run *run, u32 *bytes, u32 size)
{
	*bytes += size;
	if (*bytes < BYTES)
		return false;

	*bytes = 0;
	return run_is_stopped(run);
}

static int fill_messages(const struct run *run, const struct endpoint *ep,
			 u32 count, u64 number, u64 first, u32 size,
			 struct failure *failure)
{
	size_t words = DIV_ROUND_UP(size, sizeof(u64));
	size_t i;
	u32 bytes = 0;
	u32 message;

	for (message = 0; message < count; message++) {
		u64 *memory = ep->buffers[message].memory;

		if (run_is_stopped_after(run, &bytes, size))
			return stopped(failure);

		/* The device may access it at the same time. */
		for (i = 0; i < words; i++)
			WRITE_ONCE(memory[i],
				   pattern_word(number, first + message, i));
	}

	return 0;
}

/* Fills in what is sent, or what is read. */
static int fill(struct run *run, const struct request *request, u64 number,
		u64 first, u32 size, struct failure *failure)
{
	struct endpoint *ep = run->requester;
	u32 i;
	int ret;

	ret = fill_messages(run, request->is_returned ? run->target : ep,
			    ep->messages, number, first, size, failure);
	if (ret)
		return ret;

	if (request->has_immediate) {
		for (i = 0; i < ep->messages; i++)
			ep->sends[i].send.ex.imm_data =
				cpu_to_be32(pattern_immediate(number,
							      first + i));
	}

	if (request->is_atomic) {
		for (i = 0; i < ep->messages; i++) {
			struct ib_atomic_wr *wr = &ep->sends[i].atomic;
			u64 operand = pattern_word(number, first + i, 1);

			if (request->wr_opcode == IB_WR_ATOMIC_CMP_AND_SWP) {
				wr->compare_add = pattern_word(number,
							       first + i, 0);
				wr->swap = operand;
			} else {
				wr->compare_add = operand;
				wr->swap = 0;
			}
		}
	}

	return 0;
}

static int wrong_word(u64 message, size_t index, u64 difference, u32 size,
		      struct failure *failure)
{
	/* Bytes are compared in the order of their addresses. */
	size_t offset = index * sizeof(u64) +
			__ffs64(le64_to_cpu((__force __le64)difference)) / 8;

	/* Behind the end is what was there before. */
	if (offset >= size)
		return 0;

	failure->kind = FAILURE_DATA;
	failure->message = message;
	failure->offset = offset;
	return -EIO;
}

static int check_messages(const struct run *run, const struct endpoint *ep,
			  u32 count, u64 number, u64 first, u32 size,
			  struct failure *failure)
{
	size_t words = DIV_ROUND_UP(size, sizeof(u64));
	size_t i;
	u32 bytes = 0;
	u32 message;
	int ret;

	for (message = 0; message < count; message++) {
		const u64 *memory = ep->buffers[message].memory;

		if (run_is_stopped_after(run, &bytes, size))
			return stopped(failure);

		for (i = 0; i < words; i++) {
			u64 difference = READ_ONCE(memory[i]) ^
				pattern_word(number, first + message, i);

			if (unlikely(difference)) {
				ret = wrong_word(first + message, i,
						 difference, size, failure);
				if (ret)
					return ret;
			}
		}
	}

	return 0;
}

/* Checks what atomic operations have made of the target's words. */
static int check_operations(const struct run *run,
			    const struct request *request, u64 number,
			    u64 first, u32 size, struct failure *failure)
{
	u64 message = first;
	u64 expected, difference;
	u32 i;
	int ret;

	for (i = 0; i < run->requester->messages; i++, message++) {
		expected = pattern_word(number, message, 1);
		if (request->wr_opcode != IB_WR_ATOMIC_CMP_AND_SWP)
			expected += pattern_word(number, message, 0);

		difference = READ_ONCE(run->target->buffers[i].memory[0]) ^
			     expected;
		if (unlikely(difference)) {
			ret = wrong_word(message, 0, difference, size,
					 failure);
			if (ret)
				return ret;
		}
	}

	return 0;
}

static int wrong_opcode(u64 message, const struct entry *entry,
			struct failure *failure)
{
	failure->kind = FAILURE_OPCODE;
	failure->message = message;
	failure->number = entry->opcode;
	return -EIO;
}

static int check_receive(const struct run *run, const struct request *request,
			 const struct entry *entry, u64 number, u64 message,
			 u32 size, struct failure *failure)
{
	enum ib_wc_opcode opcode = request->is_sent ? IB_WC_RECV :
						      IB_WC_RECV_RDMA_WITH_IMM;
	u32 sent;

	if (entry->completions != 1)
		return bad_completion(run->target, entry, "receive", message,
				      failure);

	if (entry->opcode != opcode)
		return wrong_opcode(message, entry, failure);

	if (entry->byte_len != size) {
		failure->kind = FAILURE_LENGTH;
		failure->message = message;
		failure->number = entry->byte_len;
		return -EIO;
	}

	sent = request->has_immediate ? pattern_immediate(number, message) : 0;
	if (entry->has_immediate != request->has_immediate ||
	    (entry->has_immediate && entry->immediate != sent)) {
		failure->kind = FAILURE_IMMEDIATE;
		failure->message = message;
		failure->has_number = entry->has_immediate;
		failure->number = entry->immediate;
		failure->has_other = request->has_immediate;
		failure->other = sent;
		return -EIO;
	}

	return 0;
}

/* Checks and counts the completions of a batch that was posted at @start. */
static int take_completions(struct run *run, const struct request *request,
			    u64 number, u64 first, u32 size, u64 start,
			    u64 *elapsed, struct failure *failure)
{
	const struct endpoint *here = run->requester;
	const struct endpoint *there = run->target;
	u64 end = start;
	u32 i;
	int ret;

	for (i = 0; i < here->messages; i++) {
		const struct entry *entry = &here->send_entries[i];

		if (entry->completions != 1)
			return bad_completion(here, entry, request->name,
					      first + i, failure);
		if (entry->opcode != request->wc_opcode)
			return wrong_opcode(first + i, entry, failure);

		histogram_record(run->latencies, entry->time - start);
		end = max(end, entry->time);
	}

	*elapsed += end - start;
	if (!request->is_received)
		return 0;

	for (i = 0; i < there->prepared_receives; i++) {
		const struct entry *entry = &there->receive_entries[i];

		ret = check_receive(run, request, entry, number, first + i,
				    size, failure);
		if (ret)
			return ret;

		histogram_record(run->deliveries, entry->time - start);
	}

	return 0;
}

/* Checks the data of a batch that has completed. */
static int check(const struct run *run, const struct request *request,
		 u64 number, u64 first, u32 size, struct failure *failure)
{
	const struct endpoint *here = run->requester;
	const struct endpoint *there = run->target;
	int ret;

	if (request->is_atomic) {
		ret = check_operations(run, request, number, first, size,
				       failure);
		if (ret)
			return ret;
	}

	return check_messages(run, request->is_returned ? here : there,
			      here->messages, number, first, size, failure);
}

/* Sends a batch that has been prepared, and checks what comes of it. */
static int run_batch(struct run *run, const struct request *request,
		     u64 number, u64 first, u32 size, u64 *elapsed,
		     struct failure *failure)
{
	u64 start;
	int ret;

	ret = fill(run, request, number, first, size, failure);
	if (ret)
		return ret;

	if (request->is_received) {
		ret = endpoint_post_receives(run->target, failure);
		if (ret)
			return ret;
	}

	start = ktime_get_ns();
	ret = endpoint_post(run->requester);
	if (ret)
		return failed_post(failure, request->name,
				   !first && ret == -EOPNOTSUPP, ret);

	ret = settle(run, request->name, first, failure);
	if (!ret)
		ret = take_completions(run, request, number, first, size, start,
				       elapsed, failure);
	if (ret)
		return ret;

	return check(run, request, number, first, size, failure);
}

/* Runs a test; on success the caller has to destroy what was measured. */
static int run_test(struct run *run, const struct request *request, u32 size,
		    u32 messages, struct measured *measured,
		    struct failure *failure)
{
	u64 number = run->tests;
	u32 prepared = 0;
	u32 first, count;
	int ret;

	memset(measured, 0, sizeof(*measured));
	measured->is_received = request->is_received;
	histogram_clear(run->latencies);
	histogram_clear(run->deliveries);
	ret = run_open(run, request, failure);
	if (ret)
		return ret;

	for (first = 0; first < messages; first += count) {
		count = min(messages - first, run_depth(run));
		if (count != prepared) {
			prepare(run, request, count, size);
			prepared = count;
		}

		if (run_is_stopped(run))
			return stopped(failure);

		ret = run_batch(run, request, number, first, size,
				&measured->elapsed, failure);
		if (ret)
			return ret;
	}

	ret = histogram_summary(run->latencies, &measured->latencies);
	if (!ret && request->is_received)
		ret = histogram_summary(run->deliveries, &measured->deliveries);
	if (!ret)
		return 0;

	measured_destroy(measured);
	return failed_call(failure, "allocating memory", ret);
}

static int run_ports(struct run *run, struct failure *failure)
{
	const struct end_settings *ends = run->settings->ends;
	u32 other = ends[THERE].port;
	int ret;

	failure->side = HERE;
	ret = port_find(&run->ports[HERE], run->here, ends[HERE].port,
			failure);
	if (ret)
		return ret;

	/* Nobody would look for another one on the same device. */
	if (!other && run->here == run->there)
		other = run->ports[HERE].number;

	failure->side = THERE;
	return port_find(&run->ports[THERE], run->there, other, failure);
}

static int too_large(struct failure *failure, enum failure_kind kind, u32 max,
		     u32 size)
{
	failure->kind = kind;
	failure->number = max;
	failure->other = size;
	return -EINVAL;
}

/* Sets the size of the largest message, if the settings go with the devices. */
static int run_find_limit(struct run *run, struct failure *failure)
{
	const struct settings *settings = run->settings;
	u32 largest = 0;
	enum side side;
	u32 max, memory;
	unsigned int i;

	for (side = HERE; side < SIDES; side++) {
		failure->side = side;
		max = endpoint_max_depth(side == HERE ? run->here : run->there);
		if (settings->depth > max)
			return too_large(failure, FAILURE_DEPTH, max, 0);
	}

	for (i = 0; i < settings->n_sizes; i++)
		largest = max(largest, settings->sizes[i]);

	max = min((u64)run->there->attrs.max_fast_reg_page_list_len * PAGE_SIZE,
		  SIZE_MAX_BYTES);
	max = min3(max, run->ports[HERE].attr.max_msg_sz,
		   run->ports[THERE].attr.max_msg_sz);
	/* A buffer is of whole pages, and kmalloc() rounds up further. */
	memory = MEMORY_MAX / run_depth(run);
	if (memory < PAGE_SIZE)
		return too_large(failure, FAILURE_MEMORY, 0, 0);
	memory = rounddown_pow_of_two(memory);

	if (!settings->is_bounded) {
		if (largest > max)
			return too_large(failure, FAILURE_SIZE, max, largest);
		if (largest > memory)
			return too_large(failure, FAILURE_MEMORY, 0, 0);
	}

	run->limit = max(min3(largest, max, memory), (u32)WORD);
	return 0;
}

static int run_addresses(struct run *run, struct failure *failure)
{
	const struct end_settings *ends = run->settings->ends;
	const struct port *ports = run->ports;
	struct address *addresses = run->addresses;
	int other = ends[THERE].gid_index;

	/* As with the port. */
	if (other < 0 && port_is(&ports[HERE], &ports[THERE]))
		other = ends[HERE].gid_index;

	return port_addresses(&ports[HERE], &ports[THERE],
			      ends[HERE].gid_index, other, &addresses[HERE],
			      &addresses[THERE], failure);
}

/* Finds ports, and addresses, that go with the settings. */
static int run_route(struct run *run, struct failure *failure)
{
	return run_ports(run, failure) ?: run_addresses(run, failure) ?:
	       run_find_limit(run, failure);
}

/* Finds the same ports and addresses, as they are now. */
static int run_route_again(struct run *run, struct failure *failure)
{
	enum side side;
	int ret;

	for (side = HERE; side < SIDES; side++) {
		struct port *port = &run->ports[side];

		failure->side = side;
		ret = port_find(port, port->device, port->number, failure) ?:
		      port_address_again(port, &run->addresses[side], failure);
		if (ret)
			return ret;
	}

	return 0;
}

static bool run_link_is_down(struct run *run)
{
	struct failure failure = {};

	return run_route_again(run, &failure) &&
	       (failure.kind == FAILURE_PORT_DOWN ||
		failure.kind == FAILURE_GID_GONE);
}

/* Makes an endpoint, unless told to stop. */
static int run_endpoint(struct run *run, struct endpoint **ep,
			struct ib_device *device,
			const struct endpoint_attr *attr,
			struct failure *failure)
{
	int ret = endpoint_create(ep, device, attr, failure);

	/* It has not failed if it was called off. */
	return ret && run_is_stopped(run) ? stopped(failure) : ret;
}

/* Makes two endpoints and connects them. */
static int run_connect(struct run *run, struct failure *failure)
{
	struct endpoint_attr attr = {
		.depth = run_depth(run),
		.size = run->limit,
		.context = run->settings->context,
		.goes_on = run_goes_on,
		.goes_on_context = run,
	};
	const struct address *addresses = run->addresses;
	int ret;

	if (!endpoint_pair_is_affordable(&attr))
		return failed_call(failure, "allocating memory", -ENOMEM);

	ret = run_endpoint(run, &run->requester, run->here, &attr, failure);
	if (ret)
		return ret;

	attr.is_target = true;
	ret = run_endpoint(run, &run->target, run->there, &attr, failure);
	if (ret)
		goto err_requester;

	/* First the one that is to be ready when the first message comes. */
	ret = endpoint_connect(run->target, &run->ports[THERE],
			       &addresses[THERE], &run->ports[HERE],
			       &addresses[HERE], run->requester, failure);
	if (!ret)
		ret = endpoint_connect(run->requester, &run->ports[HERE],
				       &addresses[HERE], &run->ports[THERE],
				       &addresses[THERE], run->target,
				       failure);
	if (ret)
		goto err_target;

	run->is_connected = true;
	run->is_open = false;
	return 0;

err_target:
	endpoint_destroy(run->target);
err_requester:
	endpoint_destroy(run->requester);
	return ret;
}

void run_destroy(struct run *run)
{
	if (run->is_connected) {
		endpoint_destroy(run->requester);
		endpoint_destroy(run->target);
		run->is_connected = false;
	}
}

/* Returns how the ends are called, which the results are to have. */
static int run_ends(const struct run *run, struct end ends[SIDES],
		    struct failure *failure)
{
	struct ib_device *devices[SIDES] = { run->here, run->there };
	unsigned int i;

	memset(ends, 0, SIDES * sizeof(*ends));
	for (i = 0; i < SIDES; i++) {
		ends[i].device = kstrdup(run->names[i], GFP_KERNEL);
		if (!ends[i].device) {
			kfree(ends[HERE].device);
			return failed_call(failure, "allocating memory",
					   -ENOMEM);
		}
		ib_get_device_fw_str(devices[i], ends[i].firmware);
		ends[i].port = run->ports[i].number;
		ends[i].mtu = port_mtu(&run->ports[i]);
		ends[i].address = run->addresses[i];
	}

	return 0;
}

/* Says, and keeps, between what there is traffic. */
static int run_announce(const struct run *run, struct failure *failure)
{
	struct end ends[SIDES];
	int ret;

	ret = run_ends(run, ends, failure);
	if (ret)
		return ret;

	pr_info("%straffic from %s port %u (MTU %u, GID %pI6) to %s port %u (MTU %u, GID %pI6)\n",
		run->prefix, ends[HERE].device, ends[HERE].port,
		ends[HERE].mtu, ends[HERE].address.gid.raw, ends[THERE].device,
		ends[THERE].port, ends[THERE].mtu,
		ends[THERE].address.gid.raw);
	results_begin(run->results, ends);
	return 0;
}

/* Connects the same ports and addresses as before. */
static int run_connect_again(struct run *run, struct failure *failure)
{
	struct end ends[SIDES];
	int ret;

	ret = run_route_again(run, failure) ?: run_connect(run, failure);
	if (ret)
		return ret;

	/* The MTU may be another one. */
	ret = run_ends(run, ends, failure);
	if (ret)
		run_destroy(run);
	else
		results_begin(run->results, ends);
	return ret;
}

/*
 * Replaces a pair that is good for nothing any more. While it is the link's
 * fault that there is none, that has some time to come up, with its addresses.
 */
static int run_reconnect(struct run *run, struct failure *failure)
{
	bool was_up = false;
	bool is_up;
	u64 start;
	int ret;

	run_destroy(run);
	start = ktime_get_ns();

	for (;;) {
		/* Addresses may go a little later than the link. */
		fsleep(PAUSE_MS * USEC_PER_MSEC);
		if (run_is_stopped(run))
			return stopped(failure);

		ret = run_connect_again(run, failure);
		if (!ret)
			return 0;

		/* Also if it was there first, and has gone since. */
		is_up = !run_link_is_down(run);

		/* A link that is up may have just come back: a second try. */
		if ((is_up && was_up) ||
		    ktime_get_ns() - start > PATIENCE_FOR_PORT_NS)
			return ret;
		was_up = is_up;
	}
}

/* Keeps why there is no result; the text belongs to the results then. */
static int run_keep(struct run *run, struct line *line, enum outcome outcome,
		    char *text, struct failure *failure)
{
	if (!text)
		return failed_call(failure, "allocating memory", -ENOMEM);

	line->outcome = outcome;
	line->reason = text;
	results_add(run->results, line);
	return 0;
}

/* Counts and keeps a failure, as run_keep(). */
static int run_fail(struct run *run, const char *title, struct line *line,
		    char *text, struct failure *failure)
{
	run->failures++;
	if (!run->first && text)
		run->first = kasprintf(GFP_KERNEL, "%s: %s", title, text);
	return run_keep(run, line, OUTCOME_BAD, text, failure);
}

/* A number of thousandths, of which three digits are shown. */
#define THOUSANDTHS_SIZE	24

static const char *thousandths(char *text, u64 number)
{
	if (number < 1000)
		snprintf(text, THOUSANDTHS_SIZE, "0.%03llu", number);
	else if (number < 10000)
		snprintf(text, THOUSANDTHS_SIZE, "%llu.%02llu", number / 1000,
			 number / 10 % 100);
	else if (number < 100000)
		snprintf(text, THOUSANDTHS_SIZE, "%llu.%llu", number / 1000,
			 number / 100 % 10);
	else
		snprintf(text, THOUSANDTHS_SIZE, "%llu", number / 1000);
	return text;
}

static u64 rate(u64 count, u64 scale, u64 elapsed)
{
	u64 scaled;

	if (!check_mul_overflow(count, scale, &scaled))
		return elapsed ? scaled / elapsed : 0;
	return elapsed / scale ? count / (elapsed / scale) : 0;
}

#define TENTHS(ns)	(ns) / 1000, (ns) / 100 % 10

static void say_figures(const struct run *run, const char *title, u32 messages,
			u32 size, const struct measured *measured)
{
	const struct summary *latencies = &measured->latencies;
	u64 elapsed = measured->elapsed;
	u64 p50 = summary_percentile(latencies, 500);
	u64 p99 = summary_percentile(latencies, 990);
	u64 p999 = summary_percentile(latencies, 999);
	char kops[THOUSANDTHS_SIZE], mbytes[THOUSANDTHS_SIZE];

	pr_info("%s%s: %u ok, latency min/p50/p99/p99.9/max %llu.%llu/%llu.%llu/%llu.%llu/%llu.%llu/%llu.%llu us, %s kops/s, %s MB/s\n",
		run->prefix, title, messages, TENTHS(latencies->min),
		TENTHS(p50), TENTHS(p99), TENTHS(p999), TENTHS(latencies->max),
		thousandths(kops, rate(messages, 1000000000, elapsed)),
		thousandths(mbytes, rate((u64)messages * size, 1000000,
					 elapsed)));
}

/* Runs a test and says how it went; then there is a pair for the next one. */
static int try_test(struct run *run, const struct request *request, u32 size,
		    struct failure *failure)
{
	struct line line = {
		.test = request->name,
		.size = size,
		.messages = run->settings->messages,
		.outcome = OUTCOME_GOOD,
	};
	char title[64];
	char *text;
	int ret;

	snprintf(title, sizeof(title), "%s %uB depth %u", request->name, size,
		 run_depth(run));
	run->tests++;

	ret = run_test(run, request, size, line.messages, &line.measured,
		       failure);
	if (!ret) {
		say_figures(run, title, line.messages, size, &line.measured);
		results_add(run->results, &line);
		return 0;
	}

	if (failure->kind == FAILURE_STOPPED)
		return ret;

	text = failure_text(failure);
	/* Some drivers tell of atomics that are for user space only. */
	if (request->is_atomic && failure->kind == FAILURE_REFUSED) {
		pr_info("%s%s: skipped, %s\n", run->prefix, title, text);
		ret = run_keep(run, &line, OUTCOME_SKIPPED, text, failure);
	} else {
		pr_err("%s%s: failed, %s\n", run->prefix, title, text);
		ret = run_fail(run, title, &line, text, failure);
	}
	return ret ?: run_reconnect(run, failure);
}

/*
 * Reads with a key that opens nothing, and then once more; returns how many
 * requests were flushed.
 */
static int wrong_key(struct run *run, u32 *flushed, struct failure *failure)
{
	const struct request *request = read_request;
	const struct endpoint *ep = run->requester;
	enum ib_wc_status expected = IB_WC_REM_ACCESS_ERR;
	unsigned int round;
	u32 i;
	int ret;

	*flushed = 0;
	ret = run_open(run, request, failure);
	if (ret)
		return ret;

	prepare(run, request, run_depth(run), WORD);
	endpoint_falsify_first_key(run->requester);

	for (round = 0; round < 2; round++) {
		ret = endpoint_post(run->requester);
		if (ret)
			return failed_post(failure, request->name, false, ret);

		/* What has not completed is found among the others. */
		ret = run_wait(run, PATIENCE_NS, pair_has_no_sends, failure);
		if (ret < 0)
			return ret;

		for (i = 0; i < ep->messages; i++) {
			const struct entry *entry = &ep->send_entries[i];

			if (entry->completions != 1 || !entry->is_own ||
			    entry->status != expected)
				return bad_completion(run->requester, entry,
						      request->name, i,
						      failure);
			if (expected == IB_WC_WR_FLUSH_ERR)
				(*flushed)++;
			expected = IB_WC_WR_FLUSH_ERR;
		}

		/* A device may say so later than it completes the request. */
		ret = run_wait(run, PATIENCE_NS, pair_is_in_error, failure);
		if (ret < 0)
			return ret;
		if (!ret) {
			failure->kind = FAILURE_STATE;
			failure->qp_state = endpoint_state(ep);
			return -EIO;
		}
	}

	return 0;
}

/*
 * Causes an error on purpose, and looks whether it is what it has to be and
 * whether a new connection works.
 */
static int cause_error(struct run *run, struct failure *failure)
{
	static const char title[] = "READ with a wrong key";
	struct line line = {
		.test = "wrong_key",
		.size = WORD,
		.messages = run_depth(run),
		.outcome = OUTCOME_FLUSHED,
	};
	struct measured measured;
	const char *what = "failed";
	u32 flushed;
	char *text;
	int ret;

	run->tests++;

	ret = wrong_key(run, &flushed, failure);
	if (!ret) {
		ret = run_reconnect(run, failure);
		if (ret)
			return ret;

		ret = run_test(run, send_request, WORD, run_depth(run),
			       &measured, failure);
		if (!ret) {
			measured_destroy(&measured);
			pr_info("%s%s: %s, %u flushed, queue pair in %s; recovered by a new one\n",
				run->prefix, title,
				status_names[IB_WC_REM_ACCESS_ERR], flushed,
				qp_state_name(IB_QPS_ERR));
			line.flushed = flushed;
			results_add(run->results, &line);
			return 0;
		}
		what = "not recovered";
	}

	if (failure->kind == FAILURE_STOPPED)
		return ret;

	text = failure_text(failure);
	pr_err("%s%s: %s, %s\n", run->prefix, title, what, text);
	ret = run_fail(run, title, &line, text, failure);
	return ret ?: run_reconnect(run, failure);
}

/* Makes as many connections and says how long that took. */
static int try_connections(struct run *run, struct failure *failure)
{
	struct line line = {
		.test = "connect",
		.connections = run->settings->connections,
		.outcome = OUTCOME_CONNECTED,
	};
	char *text;
	u64 rate;
	int ret;

	run->tests++;

	ret = connections_make(run, line.connections, &line.elapsed, failure);
	if (!ret) {
		rate = line.connections * (u64)NSEC_PER_SEC;
		pr_info("%s%s: %u ok, %llu per second\n", run->prefix,
			line.test, line.connections,
			line.elapsed ? rate / line.elapsed : 0);
		results_add(run->results, &line);
		return 0;
	}

	if (failure->kind == FAILURE_STOPPED)
		return ret;

	text = failure_text(failure);
	pr_err("%s%s: failed, %s\n", run->prefix, line.test, text);
	return run_fail(run, line.test, &line, text, failure);
}

static bool has_atomics(const struct ib_device *device)
{
	return device->attrs.atomic_cap != IB_ATOMIC_NONE;
}

static int run_sizes(struct run *run, const struct request *request,
		     struct failure *failure)
{
	const struct settings *settings = run->settings;
	bool is_first = true;
	u32 former = 0;
	unsigned int i;
	u32 size;
	int ret;

	for (i = 0; i < settings->n_sizes; i++) {
		size = min(settings->sizes[i], run->limit);

		/* Several may be more than the device can have. */
		if (settings->is_bounded && !is_first && former == size)
			continue;

		is_first = false;
		former = size;
		ret = try_test(run, request, size, failure);
		if (ret)
			return ret;
	}

	return 0;
}

/* Runs all tests; a test that fails is counted, and it goes on. */
int run_all(struct run *run, struct failure *failure)
{
	const struct request *request;
	int ret;

	ret = run_route(run, failure);
	if (!ret)
		ret = run_connect(run, failure);
	if (!ret)
		ret = run_announce(run, failure);
	if (ret)
		return ret;

	if (run->settings->connections) {
		ret = try_connections(run, failure);
		if (ret)
			return ret;
	}

	for (request = requests; request < requests + REQUESTS; request++) {
		if (!request->is_atomic)
			ret = run_sizes(run, request, failure);
		else if (has_atomics(run->here) && has_atomics(run->there))
			ret = try_test(run, request, WORD, failure);
		if (ret)
			return ret;
	}

	if (run->settings->errors) {
		ret = cause_error(run, failure);
		if (ret)
			return ret;
	}

	return run_close(run, failure);
}
