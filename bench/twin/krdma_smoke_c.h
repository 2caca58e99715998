/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The C twin of krdma_smoke: what that does in Rust, as kernel C has it. It is
 * there to be compared with, so whatever one of them says or asks of ib_core,
 * the other does as well.
 */

#ifndef KRDMA_SMOKE_C_H
#define KRDMA_SMOKE_C_H

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kernel.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/printk.h>
#include <linux/string.h>
#include <linux/timekeeping.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

#ifdef KRDMA_SMOKE_QUIET
#undef pr_err
#undef pr_warn
#undef pr_notice
#undef pr_info
#define pr_err(fmt, ...)	no_printk(fmt, ##__VA_ARGS__)
#define pr_warn(fmt, ...)	no_printk(fmt, ##__VA_ARGS__)
#define pr_notice(fmt, ...)	no_printk(fmt, ##__VA_ARGS__)
#define pr_info(fmt, ...)	no_printk(fmt, ##__VA_ARGS__)
#endif

/* Under which the client and its objects are listed. */
#define CLIENT_NAME	KBUILD_MODNAME

#define SIZES_MAX	32
#define SIZES_DEFAULT	"8,4096,65536,1048576"

/* How long a completion may take. A queue pair gives up much earlier. */
#define PATIENCE_NS	(30ULL * NSEC_PER_SEC)

/* Between looks at something that cannot be waited for. */
#define PAUSE_MS	100

/* How many bytes the outstanding messages may have at each end. */
#define MEMORY_MAX	(64ULL << 20)

/* The largest message: as much as kmalloc() gives at most, everywhere. */
#define SIZE_MAX_BYTES	(4ULL << 20)

/*
 * A name from outside can neither forge a line of the log nor fill it: what is
 * not printable is escaped, and more than a device name can have is cut off.
 */
#define NAME_FMT	"%*pEhps%s"
#define NAME_ARGS(name)							\
	(int)strnlen(name, IB_DEVICE_NAME_MAX), name,			\
	strlen(name) > IB_DEVICE_NAME_MAX ? "..." : ""

/* main.c */

extern char *rdma_dev_name;

/* device.c */

bool device_looks_right(struct ib_device *device);

static inline void device_hold(struct ib_device *device)
{
	/* Not from zero: ib_core, or another reference, holds one. */
	refcount_inc(&device->refcount);
}

/* A flag that is raised once, and seen by several who go at different times. */
struct stop {
	struct kref kref;
	bool raised;
};

struct stop *stop_create(void);
void stop_release(struct kref *kref);

static inline struct stop *stop_get(struct stop *stop)
{
	kref_get(&stop->kref);
	return stop;
}

static inline void stop_put(struct stop *stop)
{
	kref_put(&stop->kref, stop_release);
}

static inline void raise(bool *flag)
{
	/* Pairs with is_raised(). */
	smp_store_release(flag, true);
}

static inline bool is_raised(const bool *flag)
{
	/* Pairs with raise(). */
	return smp_load_acquire(flag);
}

/* ib_core.c */

int check_running_ib_core(void);
const char *built_for(void);

/* smoke.c */

struct resources {
	struct ib_pd *pd;
	struct ib_cq *cq;
	unsigned int n_qps;
	struct ib_qp **qps;
};

int resources_create(struct resources *resources, struct ib_device *device,
		     unsigned int queue_pairs);
void resources_destroy(struct resources *resources);

void smoke_cq_event(struct ib_event *event, void *context);
void smoke_qp_event(struct ib_event *event, void *context);
void smoke_failed(const char *step, int error);
bool wire_destroyed(const char *function, int error);
int qps_destroy(struct ib_qp **qps, unsigned int n_qps);

/* Which end of the connection: the device under test, or its peer. */
enum side {
	HERE,
	THERE,
	SIDES,
};

/* settings.c */

/* What the user wants of one end of the connection. */
struct end_settings {
	/* 0 for the first one that is active. */
	u32 port;
	/* -1 for the best one. */
	int gid_index;
};

/* What the user wants of the traffic, as far as it needs no device. */
struct settings {
	u32 messages;
	u32 depth;
	enum ib_poll_context context;
	/* Of the device and its peer, which may be the same. */
	struct end_settings ends[SIDES];
	bool errors;
	/* How many connections to make, and to time; perhaps none. */
	u32 connections;
	/* A size that is too large is bounded, and not an error. */
	bool is_bounded;
	unsigned int n_sizes;
	u32 sizes[SIZES_MAX];
};

int settings_parse(struct settings *settings, const char *sizes,
		   const char *poll);

/* peer.c */

/* The device at the other end of every connection. */
struct peer {
	const char *name;
	char *shown;
	/* Protects what follows. */
	struct mutex lock;
	/* Of those that have the name, the last to come first. */
	struct list_head offers;
};

/* A device that may be the peer. */
struct offer {
	/* Empty while it does not have the name. */
	struct list_head node;
	struct ib_device *device;
	struct stop *stop;
};

int peer_init(struct peer *peer, const char *name);
void peer_destroy(struct peer *peer);
bool peer_is_there(struct peer *peer);
struct ib_device *peer_current(struct peer *peer, struct stop **stop);

struct offer *offer_create(struct peer *peer, struct ib_device *device,
			   const char *name);
void offer_rename(struct peer *peer, struct offer *offer, const char *name);
void offer_destroy(struct peer *peer, struct offer *offer);

/* histogram.c */

/* How many counters there are from one power of two to the next. */
#define HISTOGRAM_STEPS_SHIFT	7
#define HISTOGRAM_STEPS		(1U << HISTOGRAM_STEPS_SHIFT)

/* The largest value, 10 s; larger ones are counted as this one. */
#define HISTOGRAM_MAX		(10ULL * NSEC_PER_SEC)

/* How often which value was seen. */
struct histogram {
	u32 *counters;
	u64 count;
	u64 min;
	u64 max;
};

struct bucket {
	u64 lower;
	u64 upper;
	u32 count;
};

/* A finished histogram, with only those counters that are not zero. */
struct summary {
	u64 min;
	u64 max;
	u64 count;
	size_t n_buckets;
	struct bucket *buckets;
};

int histogram_init(struct histogram *histogram);
void histogram_destroy(struct histogram *histogram);
void histogram_clear(struct histogram *histogram);
int histogram_summary(const struct histogram *histogram,
		      struct summary *summary);
u64 summary_percentile(const struct summary *summary, u64 permille);

/*
 * Values below HISTOGRAM_STEPS have a counter each. From there on each power of
 * two has as many, so that none is wider than 1/128 of its values.
 */
static inline size_t histogram_index(u64 value)
{
	unsigned int shift;

	value = min(value, HISTOGRAM_MAX);
	if (value < HISTOGRAM_STEPS)
		return value;

	shift = __fls(value) - HISTOGRAM_STEPS_SHIFT;

	/* The highest bit of what is left counts as one more power of two. */
	return ((size_t)shift << HISTOGRAM_STEPS_SHIFT) + (value >> shift);
}

static inline void histogram_record(struct histogram *histogram, u64 value)
{
	/* A test has no more messages than that. */
	histogram->counters[histogram_index(value)]++;
	histogram->count++;
	histogram->min = min(histogram->min, value);
	histogram->max = max(histogram->max, value);
}

/* port.c */

/* A port of a device, as it was when it was asked. */
struct port {
	struct ib_device *device;
	u32 number;
	struct ib_port_attr attr;
	bool is_ethernet;
};

/* By what a port is reached. */
struct address {
	union ib_gid gid;
	u8 gid_index;
	bool is_roce_v2;
	u16 lid;
	u8 mac[ETH_ALEN];
	u16 vlan;
};

/* "xxxx:" times eight. */
#define GID_TEXT_SIZE	40

struct failure;

int port_find(struct port *port, struct ib_device *device, u32 wanted,
	      struct failure *failure);
int port_addresses(const struct port *here, const struct port *there,
		   int index, int other_index, struct address *from,
		   struct address *to, struct failure *failure);
int port_address_again(const struct port *port, struct address *address,
		       struct failure *failure);
void port_path(const struct port *port, const struct address *from,
	       const struct address *to, struct rdma_ah_attr *path);

static inline bool port_is(const struct port *port, const struct port *other)
{
	return port->device == other->device && port->number == other->number;
}

static inline u32 port_mtu(const struct port *port)
{
	return ib_mtu_enum_to_int(port->attr.active_mtu);
}

/* results.c */

/* One end of the connection. */
struct end {
	char *device;
	char firmware[IB_FW_VERSION_NAME_MAX];
	u32 port;
	u32 mtu;
	struct address address;
};

enum state {
	STATE_RUNNING,
	STATE_SUCCESS,
	STATE_FAILED,
	STATE_SKIPPED,
	STATE_STOPPED,
};

enum outcome {
	OUTCOME_GOOD,
	OUTCOME_CONNECTED,
	OUTCOME_FLUSHED,
	OUTCOME_BAD,
	OUTCOME_SKIPPED,
};

/* What was measured in a test. */
struct measured {
	/* How long messages were on their way. */
	u64 elapsed;
	/* From the call that posts until the completion at the requester. */
	struct summary latencies;
	/* And until that of the receive at the target, if there is one. */
	struct summary deliveries;
	bool is_received;
};

/* A test that has been run. */
struct line {
	const char *test;
	/* If it is about these, and not about messages. */
	u32 connections;
	u32 size;
	u32 messages;
	enum outcome outcome;
	union {
		struct measured measured;
		u64 elapsed;
		u32 flushed;
		/* Why it failed, or could not be run. */
		char *reason;
	};
};

/*
 * Of each of five kinds of message each size, two atomics, connections, and the
 * error.
 */
#define LINES_MAX	(7 * SIZES_MAX + 2)

struct results {
	/* Protects all of it. */
	struct mutex lock;
	enum ib_poll_context context;
	u32 depth;
	enum state state;
	char *reason;
	bool has_ends;
	struct end ends[SIDES];
	unsigned int n_lines;
	struct line *lines;
};

void measured_destroy(struct measured *measured);
int results_init(struct results *results, const struct settings *settings);
void results_destroy(struct results *results);
void results_begin(struct results *results, const struct end ends[SIDES]);
void results_add(struct results *results, const struct line *line);
void results_end(struct results *results, enum state state, char *reason);
void results_write(struct results *results, struct seq_file *seq);
const char *state_name(enum state state);

/* debugfs.c */

struct results_file {
	struct dentry *directory;
	struct results *results;
};

int results_file_create(struct results_file *file, struct dentry *parent,
			const char *name);
void results_file_remove(struct results_file *file);

/* endpoint.c */

enum failure_kind {
	FAILURE_NONE,
	FAILURE_STOPPED,
	FAILURE_CALL,
	/* A work request was not taken, perhaps as the driver has none such. */
	FAILURE_POST,
	FAILURE_REFUSED,
	FAILURE_COMPLETION,
	FAILURE_LOST,
	FAILURE_REPEATED,
	FAILURE_STRAY,
	FAILURE_OPCODE,
	FAILURE_LENGTH,
	FAILURE_IMMEDIATE,
	FAILURE_DATA,
	FAILURE_STATE,
	FAILURE_NO_SUCH_PORT,
	FAILURE_PORT_DOWN,
	FAILURE_PORT_QUERY,
	FAILURE_NO_SUCH_GID,
	FAILURE_GID_GONE,
	FAILURE_NO_PATH,
	FAILURE_DEPTH,
	FAILURE_SIZE,
	FAILURE_MEMORY,
};

/* Why traffic ended before it was over. */
struct failure {
	enum failure_kind kind;
	/* Whose port or GID it is about. */
	enum side side;
	/* The function that failed, or the kind of work request. */
	const char *what;
	int error;
	u64 message;
	/* What was found, and what should have been, or the most. */
	u32 number;
	u32 other;
	bool has_number;
	bool has_other;
	enum ib_wc_status status;
	u32 vendor_err;
	size_t offset;
	union ib_gid gid;
	/* A negative one is not known. */
	int qp_state;
};

static inline int failed_call(struct failure *failure, const char *function,
			      int error)
{
	failure->kind = FAILURE_CALL;
	failure->what = function;
	failure->error = error;
	return error;
}

static inline int failed_post(struct failure *failure, const char *of,
			      bool is_refused, int error)
{
	failure->kind = is_refused ? FAILURE_REFUSED : FAILURE_POST;
	failure->what = of;
	failure->error = error;
	return error;
}

static inline int stopped(struct failure *failure)
{
	failure->kind = FAILURE_STOPPED;
	return -EINTR;
}

/* What is asked of the peer. */
struct request {
	const char *name;
	enum ib_wr_opcode wr_opcode;
	enum ib_wc_opcode wc_opcode;
	/* What it has to be allowed to do to the peer's memory. */
	int access;
	bool is_atomic;
	bool has_immediate;
	/* It takes a receive of the target. */
	bool is_received;
	/* Its data comes with the receive. */
	bool is_sent;
	/* Its data comes back. */
	bool is_returned;
	/* Only a read behind it tells that the data is there. */
	bool needs_read_behind;
};

extern const struct request requests[];
extern const struct request *const send_request;
extern const struct request *const read_request;
#define REQUESTS	7

/* Memory that the device and the processor see alike. */
struct buffer {
	u64 *memory;
	u64 address;
	size_t size;
};

/* How many work requests of a queue are outstanding, and who waits. */
struct outstanding {
	atomic_t count;
	bool is_bad;
	bool is_waited_for;
	struct completion over;
};

/* Where a completion finds its work request, and is recorded. */
struct entry {
	struct ib_cqe cqe;
	struct outstanding *outstanding;
	struct ib_qp *qp;
	u32 completions;
	bool is_own;
	bool has_immediate;
	enum ib_wc_status status;
	enum ib_wc_opcode opcode;
	u32 vendor_err;
	u32 byte_len;
	u32 immediate;
	u64 time;
};

struct send_wr {
	union {
		struct ib_send_wr send;
		struct ib_rdma_wr rdma;
		struct ib_atomic_wr atomic;
		struct ib_reg_wr reg;
	};
	struct ib_sge sge;
};

struct recv_wr {
	struct ib_recv_wr wr;
	struct ib_sge sge;
};

struct region {
	struct ib_mr *mr;
	u8 key;
};

/* One end of a connection, with all that it will ever need. */
struct endpoint {
	struct ib_device *device;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_qp *qp;
	enum ib_poll_context context;
	u32 depth;
	u32 n_regions;
	u32 n_buffers;
	/* Each of as many buffers, the last perhaps of fewer. */
	u32 buffers_per_region;
	struct region *regions;
	/* One for each message, and one for the read behind them. */
	struct buffer *buffers;
	struct send_wr *sends;
	struct recv_wr *receives;
	struct entry *send_entries;
	struct entry *receive_entries;
	/* The batch that is prepared. */
	const struct request *request;
	u32 messages;
	u32 prepared;
	u32 prepared_receives;
	/* Something was posted that has not been drained. */
	bool is_used;
	struct outstanding sending;
	struct outstanding receiving;
};

struct endpoint_attr {
	u32 depth;
	size_t size;
	enum ib_poll_context context;
	bool is_target;
	/* Asked again and again, as a large depth takes long. */
	bool (*goes_on)(void *context);
	void *goes_on_context;
};

u32 endpoint_max_depth(const struct ib_device *device);
bool endpoint_pair_is_affordable(const struct endpoint_attr *attr);
int endpoint_create(struct endpoint **created, struct ib_device *device,
		    const struct endpoint_attr *attr, struct failure *failure);
void endpoint_destroy(struct endpoint *ep);
/* How a queue pair is to work with its peer, beside the path. */
struct qp_attr {
	int access;
	u8 incoming_reads;
	u8 outstanding_reads;
};

int qp_connect(struct ib_qp *qp, const struct qp_attr *wanted,
	       const struct port *port, const struct address *from,
	       const struct port *peer_port, const struct address *to,
	       u32 peer_number);
int endpoint_connect(struct endpoint *ep, const struct port *port,
		     const struct address *from, const struct port *peer_port,
		     const struct address *to, const struct endpoint *peer,
		     struct failure *failure);
void endpoint_prepare(struct endpoint *ep, const struct request *request,
		      u32 count, size_t length, const struct endpoint *peer,
		      bool read_behind);
void endpoint_prepare_receives(struct endpoint *ep, u32 count, size_t length);
void endpoint_prepare_registrations(struct endpoint *ep,
				    const struct request *request);
void endpoint_prepare_invalidations(struct endpoint *ep);
void endpoint_falsify_first_key(struct endpoint *ep);
int endpoint_post(struct endpoint *ep);
int endpoint_post_receives(struct endpoint *ep, struct failure *failure);
void endpoint_poll(struct endpoint *ep);
int endpoint_state(const struct endpoint *ep);
int endpoint_outstanding(const struct endpoint *ep);

static inline bool outstanding_is_bad(const struct outstanding *outstanding)
{
	/* Pairs with entry_done(). */
	return smp_load_acquire(&outstanding->is_bad);
}

static inline bool outstanding_is_over(const struct outstanding *outstanding)
{
	/* Pairs with entry_done(): what that has recorded is seen after this. */
	return atomic_read_acquire(&outstanding->count) <= 0 ||
	       outstanding_is_bad(outstanding);
}

static inline bool endpoint_is_bad(const struct endpoint *ep)
{
	return outstanding_is_bad(&ep->sending) ||
	       outstanding_is_bad(&ep->receiving);
}

static inline bool endpoint_is_over(const struct endpoint *ep)
{
	return endpoint_is_bad(ep) || (outstanding_is_over(&ep->sending) &&
				       outstanding_is_over(&ep->receiving));
}

static inline bool endpoint_has_sends(const struct endpoint *ep)
{
	return atomic_read_acquire(&ep->sending.count) > 0;
}

/* traffic.c */

/* The traffic of one device. */
struct traffic {
	struct work_struct work;
	bool stop;
	struct ib_device *device;
	char *name;
	/* Each line of the log begins with this. */
	char *prefix;
	const struct settings *settings;
	struct peer *peer;
	const bool *module_stop;
	struct results results;
	struct histogram latencies;
	struct histogram deliveries;
	struct results_file file;
	struct dentry *directory;
};

struct traffic *traffic_start(const struct settings *settings,
			      struct ib_device *device, const char *name,
			      bool is_prefixed, struct peer *peer,
			      const bool *module_stop,
			      struct dentry *directory);
void traffic_stop(struct traffic *traffic);
void traffic_rename(struct traffic *traffic, const char *name);

/* run.c */

/* The tests, one after another, between two endpoints. */
struct run {
	const struct settings *settings;
	const char *prefix;
	const char *names[SIDES];
	struct results *results;
	struct histogram *latencies;
	struct histogram *deliveries;
	struct ib_device *here;
	struct ib_device *there;
	/* Its own device is going, the peer is, if there is one, or the module. */
	const bool *stops[3];
	struct port ports[SIDES];
	struct address addresses[SIDES];
	struct endpoint *requester;
	struct endpoint *target;
	bool is_connected;
	/* The target's memory is open to the requester. */
	bool is_open;
	u32 limit;
	u32 tests;
	u32 failures;
	/* What failed first. */
	char *first;
};

bool run_is_stopped(const struct run *run);
int run_all(struct run *run, struct failure *failure);
void run_destroy(struct run *run);
char *failure_text(const struct failure *failure);

/* connections.c */

int connections_make(const struct run *run, u32 count, u64 *elapsed,
		     struct failure *failure);

#endif
