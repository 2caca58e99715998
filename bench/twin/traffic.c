// SPDX-License-Identifier: GPL-2.0
/*
 * Traffic between two queue pairs, with every byte checked and every completion
 * timed.
 */

#include "krdma_smoke_c.h"

#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/slab.h>

static bool traffic_is_stopped(const struct traffic *traffic)
{
	return is_raised(&traffic->stop) || is_raised(traffic->module_stop);
}

/* Returns the peer as soon as it is there, or NULL if told to stop before. */
static struct ib_device *wait_for_peer(struct traffic *traffic,
				       struct stop **stop)
{
	struct ib_device *device;
	bool is_said = false;

	while (!traffic_is_stopped(traffic)) {
		device = peer_current(traffic->peer, stop);
		if (device)
			return device;

		/* One that was there at first may only be the next. */
		fsleep(PAUSE_MS * USEC_PER_MSEC);

		if (!is_said && !peer_is_there(traffic->peer)) {
			pr_notice("%sno RDMA device is named %s, traffic waits for it\n",
				  traffic->prefix, traffic->peer->shown);
			is_said = true;
		}
	}

	return NULL;
}

static bool is_iwarp(const struct ib_device *device)
{
	return device->node_type == RDMA_NODE_RNIC;
}

/* Returns why traffic has failed, as a text to be freed. */
static char *why_failed(const struct run *run, int ret,
			const struct failure *failure)
{
	const char *first = run->first ?: "see above";
	char *last, *text;

	if (!run->failures)
		return failure_text(failure);
	if (!ret)
		return kasprintf(GFP_KERNEL, "%u of %u tests, first %s",
				 run->failures, run->tests, first);

	last = failure_text(failure);
	if (!last)
		return NULL;

	text = kasprintf(GFP_KERNEL, "%u of %u tests, first %s; then %s",
			 run->failures, run->tests, first, last);
	kfree(last);
	return text;
}

/* Runs everything between two devices, which may be the same. */
static enum state traffic_between(struct traffic *traffic,
				  struct ib_device *there,
				  const bool *peer_stop, char **reason)
{
	const char *names[SIDES] = {
		[HERE] = traffic->name,
		[THERE] = traffic->peer ? traffic->peer->shown : traffic->name,
	};
	struct failure failure = {};
	enum state state;
	struct run *run;
	int ret;

	if (is_iwarp(traffic->device) || is_iwarp(there)) {
		*reason = kstrdup("iWARP needs the connection manager",
				  GFP_KERNEL);
		return STATE_SKIPPED;
	}

	if (!(there->attrs.device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS)) {
		*reason = kasprintf(GFP_KERNEL,
				    "the driver of %s has no fast registration of memory (IB_DEVICE_MEM_MGT_EXTENSIONS)",
				    names[THERE]);
		return STATE_SKIPPED;
	}

	run = kzalloc_obj(*run);
	if (!run) {
		failed_call(&failure, "allocating memory", -ENOMEM);
		*reason = failure_text(&failure);
		return STATE_FAILED;
	}

	run->settings = traffic->settings;
	run->prefix = traffic->prefix;
	memcpy(run->names, names, sizeof(names));
	run->results = &traffic->results;
	run->latencies = &traffic->latencies;
	run->deliveries = &traffic->deliveries;
	run->here = traffic->device;
	run->there = there;
	run->stops[0] = &traffic->stop;
	run->stops[1] = peer_stop;
	run->stops[2] = traffic->module_stop;

	ret = run_all(run, &failure);
	run_destroy(run);

	if (ret && failure.kind == FAILURE_STOPPED && !run->failures) {
		state = STATE_STOPPED;
	} else if (!ret && !run->failures) {
		state = STATE_SUCCESS;
	} else {
		state = STATE_FAILED;
		*reason = why_failed(run, ret, &failure);
	}

	kfree(run->first);
	kfree(run);
	return state;
}

/* Says, and keeps, how it went; the reason belongs to the results then. */
static void traffic_end(struct traffic *traffic, enum state state, char *reason)
{
	const char *prefix = traffic->prefix;

	/* First the results: whoever waits for the line looks at them next. */
	results_end(&traffic->results, state, reason);

	if (state == STATE_FAILED && reason)
		pr_err("%straffic smoke failed: %s\n", prefix, reason);
	else if (state == STATE_SKIPPED && reason)
		pr_info("%straffic smoke skipped: %s\n", prefix, reason);
	else
		pr_info("%straffic smoke %s\n", prefix, state_name(state));
}

static void traffic_work(struct work_struct *work)
{
	struct traffic *traffic = container_of(work, struct traffic, work);
	enum state state = STATE_STOPPED;
	struct ib_device *there;
	char *reason = NULL;
	struct stop *stop;

	if (!traffic->peer) {
		state = traffic_between(traffic, traffic->device, NULL,
					&reason);
	} else {
		there = wait_for_peer(traffic, &stop);
		if (there) {
			state = traffic_between(traffic, there, &stop->raised,
						&reason);
			ib_device_put(there);
			stop_put(stop);
		}
	}

	traffic_end(traffic, state, reason);
}

static void traffic_free(struct traffic *traffic)
{
	if (traffic->results.lines)
		results_destroy(&traffic->results);
	histogram_destroy(&traffic->latencies);
	histogram_destroy(&traffic->deliveries);
	kfree(traffic->name);
	kfree(traffic->prefix);
	kfree(traffic);
}

struct traffic *traffic_start(const struct settings *settings,
			      struct ib_device *device, const char *name,
			      bool is_prefixed, struct peer *peer,
			      const bool *module_stop,
			      struct dentry *directory)
{
	struct traffic *traffic;

	traffic = kzalloc_obj(*traffic);
	if (!traffic)
		return ERR_PTR(-ENOMEM);

	INIT_WORK(&traffic->work, traffic_work);
	traffic->device = device;
	traffic->settings = settings;
	traffic->peer = peer;
	traffic->module_stop = module_stop;
	traffic->directory = directory;

	/* Lines of several devices would be taken for one another's. */
	traffic->name = kasprintf(GFP_KERNEL, NAME_FMT, NAME_ARGS(name));
	if (!traffic->name)
		goto err;
	traffic->prefix = is_prefixed ?
		kasprintf(GFP_KERNEL, "%s: ", traffic->name) :
		kstrdup("", GFP_KERNEL);
	if (!traffic->prefix || results_init(&traffic->results, settings) ||
	    histogram_init(&traffic->latencies) ||
	    histogram_init(&traffic->deliveries))
		goto err;

	traffic->file.results = &traffic->results;
	if (results_file_create(&traffic->file, directory, name))
		goto err;

	/* Until the work is done, which traffic_stop() waits for. */
	queue_work(system_dfl_wq, &traffic->work);
	return traffic;

err:
	traffic_free(traffic);
	return ERR_PTR(-ENOMEM);
}

void traffic_stop(struct traffic *traffic)
{
	raise(&traffic->stop);
	/* If it has not begun, nobody else says so. */
	if (cancel_work_sync(&traffic->work))
		traffic_end(traffic, STATE_STOPPED, NULL);
	results_file_remove(&traffic->file);
	traffic_free(traffic);
}

/* Not under the former name, which another device may have next. */
void traffic_rename(struct traffic *traffic, const char *name)
{
	results_file_remove(&traffic->file);
	if (results_file_create(&traffic->file, traffic->directory, name))
		pr_err("no memory to show the results of " NAME_FMT "\n",
		       NAME_ARGS(name));
}
