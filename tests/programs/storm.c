// SPDX-License-Identifier: GPL-2.0
/*
 * Does everything at once: the module is loaded and unloaded, with traffic or without, while its
 * devices come and go, get other names, change the network namespace, go down and up, lose their
 * driver, and are looked at.
 *
 *	storm SECONDS ACTIONS SEED DRIVER
 *
 * Each actor is a process, which ends after SECONDS, or after ACTIONS of its own; SEED is where its
 * random numbers begin. There have to be the devices storm0 to storm3 on the network devices
 * net_storm0 to net_storm3, and the network namespace `other`.
 *
 * In the end there is a line for each actor and action: how often it was tried, how often it
 * worked, and how often it was refused by which error:
 *
 *	loader unload 200 180 2:15 11:5
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <rdma/rdma_netlink.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))

#define MODULE "krdma_smoke"
#define PARAMETERS "/sys/module/" MODULE "/parameters"
#define RESULTS "/sys/kernel/debug/" MODULE
#define DEVICES 4
#define ERRORS 134

enum action {
	LOAD, UNLOAD, ADD, DELETE, RENAME, MOVE, SHOW, LIST, DOWN, UP, READ_PARAMETER, READ_RESULTS,
	UNLOAD_DRIVER, LOAD_DRIVER, ACTIONS
};

static const char *const action_names[ACTIONS] = {
	[LOAD] = "load",
	[UNLOAD] = "unload",
	[ADD] = "add",
	[DELETE] = "delete",
	[RENAME] = "rename",
	[MOVE] = "move",
	[SHOW] = "show",
	[LIST] = "list",
	[DOWN] = "down",
	[UP] = "up",
	[READ_PARAMETER] = "read-parameter",
	[READ_RESULTS] = "read-results",
	[UNLOAD_DRIVER] = "unload-driver",
	[LOAD_DRIVER] = "load-driver",
};

struct tally {
	unsigned int tried;
	unsigned int worked;
	unsigned int errors[ERRORS];
};

/* An RDMA device, and the network namespace that it is in. */
struct device {
	int namespace;
	uint32_t index;
	char name[64];
};

struct message {
	struct nlmsghdr header;
	char payload[512];
};

/* The namespace that all begins in, and the other one. */
static int namespaces[2];
static int rdma_sockets[2];
static int route_socket;
static const char *driver;

/* Those of the actor that this process is. */
static struct tally *tallies;
static uint64_t random_state;

static uint32_t below(uint32_t bound)
{
	/* splitmix64 */
	uint64_t z = random_state += 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return (z ^ (z >> 31)) % bound;
}

static void wait_up_to(unsigned int milliseconds)
{
	usleep(below(milliseconds * 1000 + 1));
}

/* Counts what has returned 0 or, negative, an error. */
static int count(enum action action, int result)
{
	struct tally *tally = &tallies[action];

	tally->tried++;
	if (!result)
		tally->worked++;
	else
		tally->errors[-result < ERRORS ? -result : 0]++;
	return result;
}

static int run(const char *const *argv)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		err(1, "fork");
	if (!child) {
		int null = open("/dev/null", O_RDWR);

		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		execvp(argv[0], (char *const *)argv);
		_exit(127);
	}
	if (waitpid(child, &status, 0) < 0)
		err(1, "waitpid");
	return status ? -ECHILD : 0;
}

static int open_netlink(int protocol)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);

	if (fd < 0)
		err(1, "netlink socket");
	return fd;
}

static struct message request(uint16_t type, uint16_t flags)
{
	return (struct message) {
		.header = {
			.nlmsg_len = NLMSG_HDRLEN,
			.nlmsg_type = type,
			.nlmsg_flags = NLM_F_REQUEST | flags,
		},
	};
}

static void put(struct message *message, uint16_t type, const void *data, size_t length)
{
	struct nlmsghdr *header = &message->header;
	struct rtattr *attribute = (void *)message + NLMSG_ALIGN(header->nlmsg_len);

	attribute->rta_type = type;
	attribute->rta_len = RTA_LENGTH(length);
	memcpy(RTA_DATA(attribute), data, length);
	header->nlmsg_len = NLMSG_ALIGN(header->nlmsg_len) + RTA_ALIGN(attribute->rta_len);
}

static void put_string(struct message *message, uint16_t type, const char *string)
{
	put(message, type, string, strlen(string) + 1);
}

static void put_u32(struct message *message, uint16_t type, uint32_t value)
{
	put(message, type, &value, sizeof(value));
}

/*
 * Sends a message and takes what comes back, up to its acknowledgement or the end of the dump,
 * either of which may be an error. `each` sees what comes before.
 */
static int exchange(int fd, struct message *message,
		    void (*each)(const struct nlmsghdr *header, void *data), void *data)
{
	static char buffer[1 << 16] __attribute__((aligned(NLMSG_ALIGNTO)));

	if (send(fd, message, message->header.nlmsg_len, 0) < 0)
		err(1, "send");
	for (;;) {
		ssize_t received = recv(fd, buffer, sizeof(buffer), 0);
		struct nlmsghdr *header = (void *)buffer;
		unsigned int length = received;

		if (received < 0)
			err(1, "recv");
		for (; NLMSG_OK(header, length); header = NLMSG_NEXT(header, length)) {
			/* Both begin with the error. */
			if (header->nlmsg_type == NLMSG_ERROR || header->nlmsg_type == NLMSG_DONE)
				return *(int *)NLMSG_DATA(header);
			if (each)
				each(header, data);
		}
	}
}

static struct message rdma_request(uint16_t command, uint16_t flags)
{
	return request(RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command), flags);
}

struct list {
	int namespace;
	unsigned int length;
	struct device devices[2 * DEVICES];
};

static void take_device(const struct nlmsghdr *header, void *data)
{
	struct rtattr *attribute = NLMSG_DATA(header);
	unsigned int length = NLMSG_PAYLOAD(header, 0);
	struct list *list = data;
	struct device *device = &list->devices[list->length];

	if (list->length == ARRAY_SIZE(list->devices))
		return;
	*device = (struct device) { .namespace = list->namespace };
	for (; RTA_OK(attribute, length); attribute = RTA_NEXT(attribute, length)) {
		if (attribute->rta_type == RDMA_NLDEV_ATTR_DEV_INDEX)
			device->index = *(uint32_t *)RTA_DATA(attribute);
		if (attribute->rta_type == RDMA_NLDEV_ATTR_DEV_NAME)
			snprintf(device->name, sizeof(device->name), "%s",
				 (char *)RTA_DATA(attribute));
	}
	if (*device->name)
		list->length++;
}

/* Lists the devices of a namespace; a name's last character tells which one it is. */
static struct list list_devices(int namespace)
{
	struct message message = rdma_request(RDMA_NLDEV_CMD_GET, NLM_F_DUMP);
	struct list list = { .namespace = namespace };

	exchange(rdma_sockets[namespace], &message, take_device, &list);
	return list;
}

static char last_of(const struct device *device)
{
	return device->name[strlen(device->name) - 1];
}

static bool any_device(struct device *device)
{
	int first = below(2);

	for (int i = 0; i < 2; i++) {
		struct list list = list_devices(first ^ i);

		if (list.length) {
			*device = list.devices[below(list.length)];
			return true;
		}
	}
	return false;
}

static int add(const char *name, const char *netdev)
{
	struct message message = rdma_request(RDMA_NLDEV_CMD_NEWLINK, NLM_F_ACK);

	put_string(&message, RDMA_NLDEV_ATTR_DEV_NAME, name);
	put_string(&message, RDMA_NLDEV_ATTR_LINK_TYPE, driver);
	put_string(&message, RDMA_NLDEV_ATTR_NDEV_NAME, netdev);
	return exchange(rdma_sockets[0], &message, NULL, NULL);
}

static int delete(const struct device *device)
{
	struct message message = rdma_request(RDMA_NLDEV_CMD_DELLINK, NLM_F_ACK);

	put_u32(&message, RDMA_NLDEV_ATTR_DEV_INDEX, device->index);
	return exchange(rdma_sockets[device->namespace], &message, NULL, NULL);
}

/* Adds a device; if it is there, deletes it half of the time, so that most of them are there. */
static void act_as_owner(void)
{
	unsigned int number = below(DEVICES);
	char name[16], netdev[16];
	bool there = false;

	snprintf(name, sizeof(name), "storm%u", number);
	snprintf(netdev, sizeof(netdev), "net_storm%u", number);
	for (int namespace = 0; namespace < 2; namespace++) {
		struct list list = list_devices(namespace);

		for (unsigned int i = 0; i < list.length; i++) {
			if (last_of(&list.devices[i]) != name[strlen(name) - 1])
				continue;
			if (below(2))
				count(DELETE, delete(&list.devices[i]));
			there = true;
		}
	}
	if (!there)
		count(ADD, add(name, netdev));
	wait_up_to(500);
}

static void act_as_renamer(void)
{
	struct message message = rdma_request(RDMA_NLDEV_CMD_SET, NLM_F_ACK);
	struct device device;
	char name[16];

	if (any_device(&device)) {
		snprintf(name, sizeof(name), "%s%c", device.name[0] == 's' ? "other" : "storm",
			 last_of(&device));
		put_u32(&message, RDMA_NLDEV_ATTR_DEV_INDEX, device.index);
		put_string(&message, RDMA_NLDEV_ATTR_DEV_NAME, name);
		count(RENAME, exchange(rdma_sockets[device.namespace], &message, NULL, NULL));
	}
	wait_up_to(100);
}

static void act_as_mover(void)
{
	struct message message = rdma_request(RDMA_NLDEV_CMD_SET, NLM_F_ACK);
	struct device device;

	if (any_device(&device)) {
		put_u32(&message, RDMA_NLDEV_ATTR_DEV_INDEX, device.index);
		put_u32(&message, RDMA_NLDEV_NET_NS_FD, namespaces[!device.namespace]);
		count(MOVE, exchange(rdma_sockets[device.namespace], &message, NULL, NULL));
	}
	wait_up_to(1000);
}

static void act_as_loader(void)
{
	char parameters[256] = "rdma_dev_name=";
	int fd = open("/krdma_smoke.ko", O_RDONLY | O_CLOEXEC);
	size_t length;

	if (fd < 0)
		err(1, "/krdma_smoke.ko");
	length = strlen(parameters);
	if (below(2))
		length += snprintf(parameters + length, sizeof(parameters) - length, "storm%u",
				   below(DEVICES));
	if (below(2))
		snprintf(parameters + length, sizeof(parameters) - length,
			 " traffic=%u depth=%u poll=%s errors=%u sizes=8,4096%s", 1 + below(100),
			 1 + below(8), below(2) ? "direct" : "workqueue", below(2),
			 below(2) ? " peer=storm0" : "");
	count(LOAD, syscall(SYS_finit_module, fd, parameters, 0) ? -errno : 0);
	close(fd);
	wait_up_to(500);
	count(UNLOAD, syscall(SYS_delete_module, MODULE, O_NONBLOCK) ? -errno : 0);
	wait_up_to(20);
}

/* Unloads the driver with all its devices, which may be refused, and loads it again. */
static void act_as_driver(void)
{
	const char *module = strcmp(driver, "rxe") ? driver : "rdma_rxe";
	const char *const modprobe[] = { "modprobe", module, NULL };

	if (!count(UNLOAD_DRIVER, syscall(SYS_delete_module, module, O_NONBLOCK) ? -errno : 0))
		count(LOAD_DRIVER, run(modprobe));
	wait_up_to(10000);
}

static void set_up(enum action action, const char *netdev, bool up)
{
	struct message message = request(RTM_NEWLINK, NLM_F_ACK);
	struct ifinfomsg *info = NLMSG_DATA(&message.header);

	info->ifi_index = if_nametoindex(netdev);
	info->ifi_flags = up ? IFF_UP : 0;
	info->ifi_change = IFF_UP;
	message.header.nlmsg_len = NLMSG_LENGTH(sizeof(*info));
	count(action, exchange(route_socket, &message, NULL, NULL));
}

static void act_as_switch(void)
{
	char netdev[16];

	snprintf(netdev, sizeof(netdev), "net_storm%u", below(DEVICES));
	set_up(DOWN, netdev, false);
	wait_up_to(20);
	set_up(UP, netdev, true);
	wait_up_to(200);
}

/* Looks as people do. */
static void act_as_viewer(void)
{
	static const char *const kinds[] = { NULL, "pd", "cq", "qp", "mr" };
	const char *const rdma[] = { "rdma", "resource", "show", kinds[below(5)], NULL };

	count(SHOW, run(rdma));
	wait_up_to(200);
}

/* Asks what `rdma resource show` asks, without the time that it takes to start it. */
static void act_as_lister(void)
{
	static const uint16_t commands[] = {
		RDMA_NLDEV_CMD_RES_QP_GET,
		RDMA_NLDEV_CMD_RES_CQ_GET,
		RDMA_NLDEV_CMD_RES_PD_GET,
		RDMA_NLDEV_CMD_RES_MR_GET,
	};
	struct message message = rdma_request(commands[below(ARRAY_SIZE(commands))], NLM_F_DUMP);
	struct device device;

	if (any_device(&device)) {
		put_u32(&message, RDMA_NLDEV_ATTR_DEV_INDEX, device.index);
		count(LIST, exchange(rdma_sockets[device.namespace], &message, NULL, NULL));
	}
	wait_up_to(50);
}

static int read_all(const char *path)
{
	static char buffer[1 << 12];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got;
	int result = 0;

	if (fd < 0)
		return -errno;
	do {
		got = read(fd, buffer, sizeof(buffer));
		if (got < 0)
			result = -errno;
	} while (got > 0);
	close(fd);
	return result;
}

/* Reads the files of a directory, or, if there is a `file`, that one of each directory in it. */
static void read_directory(enum action action, const char *directory, const char *file)
{
	DIR *entries = opendir(directory);
	struct dirent *entry;
	char path[512];

	if (!entries) {
		count(action, -errno);
		return;
	}
	while ((entry = readdir(entries))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s%s%s", directory, entry->d_name,
			 file ? "/" : "", file ? file : "");
		count(action, read_all(path));
	}
	closedir(entries);
}

static void act_as_reader(void)
{
	if (!below(8))
		read_directory(READ_PARAMETER, PARAMETERS, NULL);
	read_directory(READ_RESULTS, RESULTS, "results");
	wait_up_to(50);
}

/*
 * Soft-RoCE gets a single owner. It counts the users of its UDP sockets without a lock, so that
 * adding a device while another one is deleted may be refused, or use a socket that was freed. And
 * each of its devices has 3,000 files in sysfs, all of which take one lock: several owners would
 * keep the others, and one another, from doing anything.
 */
static const struct actor {
	const char *name;
	void (*act)(void);
	bool not_on_rxe;
} actors[] = {
	{ "loader", act_as_loader, false },
	{ "loader", act_as_loader, false },
	{ "owner", act_as_owner, false },
	{ "owner", act_as_owner, true },
	{ "owner", act_as_owner, true },
	{ "owner", act_as_owner, true },
	{ "renamer", act_as_renamer, false },
	{ "mover", act_as_mover, false },
	{ "driver", act_as_driver, false },
	{ "switch", act_as_switch, false },
	{ "viewer", act_as_viewer, false },
	{ "lister", act_as_lister, false },
	{ "reader", act_as_reader, false },
};

/* Opens what is used in both network namespaces; these sockets are each actor's own. */
static void open_all(void)
{
	route_socket = open_netlink(NETLINK_ROUTE);
	rdma_sockets[0] = open_netlink(NETLINK_RDMA);
	namespaces[0] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	namespaces[1] = open("/run/netns/other", O_RDONLY | O_CLOEXEC);
	if (namespaces[0] < 0 || namespaces[1] < 0)
		err(1, "network namespaces");
	if (setns(namespaces[1], CLONE_NEWNET))
		err(1, "setns");
	rdma_sockets[1] = open_netlink(NETLINK_RDMA);
	if (setns(namespaces[0], CLONE_NEWNET))
		err(1, "setns");
}

static time_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec;
}

static unsigned int actions(void)
{
	unsigned int sum = 0;

	for (int action = 0; action < ACTIONS; action++)
		sum += tallies[action].tried;
	return sum;
}

static void print_tallies(const char *actor)
{
	for (int action = 0; action < ACTIONS; action++) {
		const struct tally *tally = &tallies[action];

		if (!tally->tried)
			continue;
		printf("%s %s %u %u", actor, action_names[action], tally->tried, tally->worked);
		for (int error = 0; error < ERRORS; error++)
			if (tally->errors[error])
				printf(" %d:%u", error, tally->errors[error]);
		printf("\n");
	}
}

int main(int argc, char **argv)
{
	struct tally (*all)[ACTIONS];
	time_t end;
	int failed = 0;

	if (argc != 5)
		errx(1, "usage: storm SECONDS ACTIONS SEED DRIVER");
	driver = argv[4];
	all = mmap(NULL, sizeof(*all) * ARRAY_SIZE(actors), PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (all == MAP_FAILED)
		err(1, "mmap");
	end = now() + atoi(argv[1]);
	for (size_t i = 0; i < ARRAY_SIZE(actors); i++) {
		pid_t child;

		if (actors[i].not_on_rxe && !strcmp(driver, "rxe"))
			continue;
		child = fork();
		if (child < 0)
			err(1, "fork");
		if (child)
			continue;
		tallies = all[i];
		random_state = strtoull(argv[3], NULL, 10) * ARRAY_SIZE(actors) + i;
		open_all();
		while (now() < end && actions() < strtoul(argv[2], NULL, 10))
			actors[i].act();
		return 0;
	}
	for (int status; wait(&status) > 0;)
		failed |= status;
	for (size_t i = 0; i < ARRAY_SIZE(actors); i++) {
		tallies = all[i];
		print_tallies(actors[i].name);
	}
	return failed ? 1 : 0;
}
