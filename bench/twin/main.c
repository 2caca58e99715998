// SPDX-License-Identifier: GPL-2.0
/*
 * A smoke test of the kernel verbs path of RDMA devices: takes those that bear
 * the name it was given.
 */

#include "krdma_smoke_c.h"

#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>

MODULE_DESCRIPTION("Smoke test of the kernel RDMA verbs path");
MODULE_LICENSE("GPL");

char *rdma_dev_name = "mlx5_0";
module_param(rdma_dev_name, charp, 0444);
MODULE_PARM_DESC(rdma_dev_name,
		 "Name of the RDMA device to test; empty for every device (default: mlx5_0)");

static bool check_ib_core = true;
module_param(check_ib_core, bool, 0444);
MODULE_PARM_DESC(check_ib_core,
		 "Refuse to run with another ib_core than it was built for (default: Y)");

#define QUEUE_PAIRS_MAX	4096

static unsigned int queue_pairs = 1;
module_param(queue_pairs, uint, 0444);
MODULE_PARM_DESC(queue_pairs,
		 "Number of queue pairs to make on each device, which share a completion queue (default: 1)");

static struct settings settings = {
	.depth = 1,
	.ends = {
		[HERE].gid_index = -1,
		[THERE].gid_index = -1,
	},
};

module_param_named(traffic, settings.messages, uint, 0444);
MODULE_PARM_DESC(traffic,
		 "Number of messages that each test of traffic sends; 0 for no traffic (default: 0)");

static char *sizes = SIZES_DEFAULT;
module_param(sizes, charp, 0444);
MODULE_PARM_DESC(sizes,
		 "Sizes of the messages in bytes (default: 8,4096,65536,1048576, as far as the device goes)");

module_param_named(depth, settings.depth, uint, 0444);
MODULE_PARM_DESC(depth,
		 "Number of messages that are outstanding (default: 1)");

static char *poll = "direct";
module_param(poll, charp, 0444);
MODULE_PARM_DESC(poll,
		 "Who takes completions: direct, a busy loop; or workqueue, after an interrupt (default: direct)");

static char *peer = "";
module_param(peer, charp, 0444);
MODULE_PARM_DESC(peer,
		 "Name of the RDMA device at the other end; empty for the same device (default: empty)");

module_param_named(peer_port, settings.ends[THERE].port, uint, 0444);
MODULE_PARM_DESC(peer_port,
		 "port= of the other end; 0 on the same device for the same, else as port= (default: 0)");

module_param_named(peer_gid_index, settings.ends[THERE].gid_index, int, 0444);
MODULE_PARM_DESC(peer_gid_index,
		 "gid_index= of the other end; -1 for one that goes with that of this end (default: -1)");

module_param_named(port, settings.ends[HERE].port, uint, 0444);
MODULE_PARM_DESC(port,
		 "Number of the port; 0 for the first that is active (default: 0)");

module_param_named(gid_index, settings.ends[HERE].gid_index, int, 0444);
MODULE_PARM_DESC(gid_index,
		 "Index of the GID for RoCE; -1 for one of RoCE v2 that goes with the other end (default: -1)");

module_param_named(connections, settings.connections, uint, 0444);
MODULE_PARM_DESC(connections,
		 "Number of connections to make before traffic, and to time; 0 for none (default: 0)");

module_param_named(errors, settings.errors, bool, 0444);
MODULE_PARM_DESC(errors,
		 "Also cause an error, by a wrong key, and recover from it (default: N)");

/* Stops all traffic. */
static bool module_stop;

static struct peer the_peer;
static bool has_peer;

/* Holds a directory for each device with traffic. */
static struct dentry *directory;

/* As many names as usually fit into one line of the log, which is 1 KiB. */
#define ROLL_CALL_NAMES	8

/* What the notice that nothing matched has to know, while loading. */
static struct {
	/* Protects what follows. */
	struct mutex lock;
	bool is_over;
	bool matched;
	unsigned int n_names;
	char *names[ROLL_CALL_NAMES];
	unsigned int others;
	unsigned int left_alone;
} roll_call = {
	.lock = __MUTEX_INITIALIZER(roll_call.lock),
};

/* What is kept for a device. */
struct kept {
	/* There is a peer, which it may be. */
	struct offer *offer;
	/* What was made on it stays until it goes, whatever its name is. */
	bool is_taken;
	struct resources resources;
	struct traffic *traffic;
};

static void roll_call_note(const char *name, bool matched)
{
	char *shown;

	guard(mutex)(&roll_call.lock);

	if (roll_call.is_over)
		return;
	if (matched) {
		roll_call.matched = true;
		return;
	}

	if (roll_call.n_names < ROLL_CALL_NAMES) {
		shown = kasprintf(GFP_KERNEL, NAME_FMT, NAME_ARGS(name));
		if (shown) {
			roll_call.names[roll_call.n_names++] = shown;
			return;
		}
	}
	roll_call.others++;
}

static bool is_wanted(const char *name)
{
	return !*rdma_dev_name || !strcmp(rdma_dev_name, name);
}

static void roll_call_left_alone(bool matched)
{
	guard(mutex)(&roll_call.lock);

	if (roll_call.is_over)
		return;
	/* One that is there: what is wrong with it has been said. */
	if (matched)
		roll_call.matched = true;
	else
		roll_call.left_alone++;
}

/* Returns the names as a list, to be freed. */
static char *roll_call_names(void)
{
	char *list = kstrdup(roll_call.n_names ? roll_call.names[0] : "none",
			     GFP_KERNEL);
	unsigned int i;
	char *longer;

	for (i = 1; list && i < roll_call.n_names; i++) {
		longer = kasprintf(GFP_KERNEL, "%s, %s", list,
				   roll_call.names[i]);
		kfree(list);
		list = longer;
	}
	if (list && roll_call.others) {
		longer = kasprintf(GFP_KERNEL, "%s and %u more", list,
				   roll_call.others);
		kfree(list);
		list = longer;
	}
	if (list && roll_call.left_alone) {
		longer = kasprintf(GFP_KERNEL, "%s and %u left alone", list,
				   roll_call.left_alone);
		kfree(list);
		list = longer;
	}

	return list;
}

static void roll_call_end(bool is_registered)
{
	unsigned int i;
	char *list;

	guard(mutex)(&roll_call.lock);
	roll_call.is_over = true;

	if (is_registered && !roll_call.matched) {
		if (*rdma_dev_name) {
			list = roll_call_names();
			pr_notice("no RDMA device is named " NAME_FMT
				  ", waiting for it (there are: %s)\n",
				  NAME_ARGS(rdma_dev_name), list);
			kfree(list);
		} else if (!roll_call.left_alone) {
			pr_notice("no RDMA device yet, waiting for one\n");
		} else {
			pr_notice("no RDMA device that can be used, waiting for one\n");
		}
	}

	for (i = 0; i < roll_call.n_names; i++)
		kfree(roll_call.names[i]);
}

/* What the user can do about an error. */
static const char *advice(int error)
{
	return error == -ENOMEM ?
	       "out of memory; free some, then load the module again" :
	       "the driver's own messages may say why";
}

/* Says what could not be done on a device, and what the user can do. */
static void failed(const char *part, const char *name, int error)
{
	pr_err("%s smoke failed on " NAME_FMT ", ret=%d: %s\n", part,
	       NAME_ARGS(name), error, advice(error));
}

/* Makes the resources on the device if it bears the wanted name. */
static void consider(struct ib_device *device, const char *name,
		     struct kept *kept)
{
	bool matched = is_wanted(name);
	int ret;

	roll_call_note(name, matched);
	if (!matched)
		return;

	pr_info("matched RDMA device " NAME_FMT "\n", NAME_ARGS(name));

	ret = resources_create(&kept->resources, device, queue_pairs);
	if (ret) {
		failed("resource", name, ret);
		return;
	}
	kept->is_taken = true;

	if (!settings.messages)
		return;

	kept->traffic = traffic_start(&settings, device, name, !*rdma_dev_name,
				      has_peer ? &the_peer : NULL,
				      &module_stop, directory);
	if (IS_ERR(kept->traffic)) {
		failed("traffic", name, PTR_ERR(kept->traffic));
		kept->traffic = NULL;
	}
}

static struct ib_client client;

static int krdma_smoke_add(struct ib_device *device)
{
	const char *name = device->name;
	struct kept *kept;

	if (!device_looks_right(device)) {
		pr_err("an RDMA device is laid out in another way than those of the ib_core this module was built for (%s); it is left alone; build the module again\n",
		       built_for());
		roll_call_left_alone(false);
		return -EINVAL;
	}

	/* First of all, so that nothing has to be undone for want of memory. */
	kept = kzalloc_obj(*kept);
	if (!kept) {
		pr_err("no memory for RDMA device " NAME_FMT
		       ", it is left alone; load the module again\n",
		       NAME_ARGS(name));
		roll_call_left_alone(is_wanted(name));
		return -ENOMEM;
	}

	pr_info("found RDMA device " NAME_FMT "\n", NAME_ARGS(name));

	if (has_peer) {
		kept->offer = offer_create(&the_peer, device, name);
		if (!kept->offer)
			pr_err("no memory for RDMA device " NAME_FMT
			       " to be a peer; load the module again\n",
			       NAME_ARGS(name));
	}

	/* Every device is kept, as one that is not wanted can be renamed. */
	consider(device, name, kept);
	ib_set_client_data(device, &client, kept);
	return 0;
}

static void krdma_smoke_rename(struct ib_device *device, void *client_data)
{
	const char *name = device->name;
	struct kept *kept = client_data;

	pr_info("RDMA device renamed to " NAME_FMT "\n", NAME_ARGS(name));

	if (!kept)
		return;
	if (kept->offer)
		offer_rename(&the_peer, kept->offer, name);
	if (!kept->is_taken)
		consider(device, name, kept);
	else if (kept->traffic)
		traffic_rename(kept->traffic, name);
}

static void krdma_smoke_remove(struct ib_device *device, void *client_data)
{
	struct kept *kept = client_data;

	if (!kept)
		return;
	if (kept->offer)
		offer_destroy(&the_peer, kept->offer);
	if (kept->traffic)
		traffic_stop(kept->traffic);
	if (kept->is_taken)
		resources_destroy(&kept->resources);
	kfree(kept);
}

static struct ib_client client = {
	.name = CLIENT_NAME,
	.add = krdma_smoke_add,
	.remove = krdma_smoke_remove,
	.rename = krdma_smoke_rename,
};

static int prepare_traffic(void)
{
	int ret;

	if (!settings.messages) {
		if (settings.connections || settings.errors || *peer)
			pr_notice("connections=, errors= and peer= have no effect without traffic=\n");
		return 0;
	}

	if (*peer) {
		ret = peer_init(&the_peer, peer);
		if (ret)
			return ret;
		has_peer = true;
	}

	directory = debugfs_create_dir(CLIENT_NAME, NULL);
	return 0;
}

static void end_traffic(void)
{
	debugfs_remove(directory);
	if (has_peer)
		peer_destroy(&the_peer);
}

static int __init krdma_smoke_init(void)
{
	int ret;

	pr_info("init, target rdma_dev_name=" NAME_FMT "\n",
		NAME_ARGS(rdma_dev_name));

	if (check_ib_core) {
		ret = check_running_ib_core();
		if (ret)
			return ret;
	} else {
		pr_warn("check_ib_core=0: it is not checked which ib_core is running\n");
	}

	if (!queue_pairs || queue_pairs > QUEUE_PAIRS_MAX) {
		pr_err("queue_pairs=%u: there can be 1 to %u\n", queue_pairs,
		       QUEUE_PAIRS_MAX);
		return -EINVAL;
	}

	ret = settings_parse(&settings, sizes, poll);
	if (!ret)
		ret = prepare_traffic();
	/* Of a parameter that is wrong it has been said which. */
	if (ret == -ENOMEM)
		pr_err("init failed, ret=%d: %s\n", ret, advice(ret));
	if (ret)
		return ret;

	ret = ib_register_client(&client);
	if (ret)
		pr_err("ib_register_client failed, ret=%d\n", ret);
	roll_call_end(!ret);
	if (ret)
		end_traffic();
	return ret;
}
module_init(krdma_smoke_init);

static void __exit krdma_smoke_exit(void)
{
	/* On all devices at once: they are removed one after another. */
	raise(&module_stop);

	pr_info("exit\n");
	ib_unregister_client(&client);
	end_traffic();
}
module_exit(krdma_smoke_exit);
