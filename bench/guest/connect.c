// SPDX-License-Identifier: GPL-2.0
/*
 * Makes connections as the module does with connections=, from user space: as
 * many pairs of queue pairs of one device, on a completion queue and a
 * protection domain for each end. Prints how long that took, in nanoseconds,
 * from the first call that creates a queue pair until all of them are in RTS.
 *
 *     connect DEVICE GID_INDEX PAIRS
 */

#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PORT		1

/* As in verbs/qp.rs. */
#define ACK_TIMEOUT	17
#define RETRIES		6
#define RNR_RETRIES	7
#define RNR_TIMER	12

enum { HERE, THERE, SIDES };

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;
	struct ibv_device **device;

	for (device = list; device && *device; device++) {
		if (!strcmp(ibv_get_device_name(*device), name))
			context = ibv_open_device(*device);
	}
	if (!context)
		fail("ibv_open_device");
	return context;
}

static void modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (ibv_modify_qp(qp, attr, mask))
		fail("ibv_modify_qp");
}

static void connect_qp(struct ibv_qp *qp, const struct ibv_qp *peer,
		       const struct ibv_port_attr *port,
		       const union ibv_gid *gid, int gid_index)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
	};

	modify(qp, &attr,
	       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
	       IBV_QP_ACCESS_FLAGS);

	attr.qp_state = IBV_QPS_RTR;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = PORT;
	attr.ah_attr.grh.dgid = *gid;
	attr.ah_attr.grh.sgid_index = gid_index;
	attr.ah_attr.grh.hop_limit = 64;
	attr.path_mtu = port->active_mtu;
	attr.dest_qp_num = peer->qp_num;
	attr.min_rnr_timer = RNR_TIMER;
	modify(qp, &attr,
	       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
	       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
	       IBV_QP_MIN_RNR_TIMER);

	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = ACK_TIMEOUT;
	attr.retry_cnt = RETRIES;
	attr.rnr_retry = RNR_RETRIES;
	modify(qp, &attr,
	       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
	       IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(int argc, char **argv)
{
	struct ibv_qp **qps[SIDES];
	struct ibv_cq *cqs[SIDES];
	struct ibv_pd *pds[SIDES];
	struct ibv_context *context;
	struct ibv_port_attr port;
	union ibv_gid gid;
	long long start;
	int gid_index, side;
	long i, pairs;

	if (argc != 4) {
		fprintf(stderr, "usage: connect DEVICE GID_INDEX PAIRS\n");
		return 2;
	}
	context = open_device(argv[1]);
	gid_index = atoi(argv[2]);
	pairs = atol(argv[3]);

	if (ibv_query_port(context, PORT, &port))
		fail("ibv_query_port");
	if (ibv_query_gid(context, PORT, gid_index, &gid))
		fail("ibv_query_gid");

	for (side = 0; side < SIDES; side++) {
		qps[side] = calloc(pairs, sizeof(*qps[side]));
		pds[side] = ibv_alloc_pd(context);
		cqs[side] = ibv_create_cq(context, 1, NULL, NULL, 0);
		if (!qps[side] || !pds[side] || !cqs[side])
			fail("ibv_create_cq");
	}

	start = now();

	for (side = 0; side < SIDES; side++) {
		for (i = 0; i < pairs; i++) {
			struct ibv_qp_init_attr attr = {
				.send_cq = cqs[side],
				.recv_cq = cqs[side],
				.cap = {
					.max_send_wr = 1,
					.max_recv_wr = 1,
					.max_send_sge = 1,
					.max_recv_sge = 1,
				},
				.qp_type = IBV_QPT_RC,
			};

			qps[side][i] = ibv_create_qp(pds[side], &attr);
			if (!qps[side][i])
				fail("ibv_create_qp");
		}
	}

	for (i = 0; i < pairs; i++) {
		connect_qp(qps[THERE][i], qps[HERE][i], &port, &gid, gid_index);
		connect_qp(qps[HERE][i], qps[THERE][i], &port, &gid, gid_index);
	}

	printf("%lld\n", now() - start);

	/* What is left goes with the process. */
	return 0;
}
