// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * A sysctl net.smc.tcp2smc for each network namespace, as kernels of Alibaba Cloud Linux 3 have it, that does nothing: for
 * the tests of what smc-agent does with it.
 */
#include <linux/module.h>
#include <linux/sysctl.h>
#include <net/net_namespace.h>
#include <net/netns/generic.h>

struct tcp2smc {
	int value;
	struct ctl_table table[2];
	struct ctl_table_header *header;
};

static unsigned int tcp2smc_id;

static int __net_init tcp2smc_init(struct net *net)
{
	struct tcp2smc *own = net_generic(net, tcp2smc_id);

	own->table[0] = (struct ctl_table) {
		.procname = "tcp2smc",
		.data = &own->value,
		.maxlen = sizeof(own->value),
		.mode = 0644,
		.proc_handler = proc_dointvec_minmax,
		.extra1 = SYSCTL_ZERO,
		.extra2 = SYSCTL_ONE,
	};
	own->header = register_net_sysctl(net, "net/smc", own->table);
	return own->header ? 0 : -ENOMEM;
}

static void __net_exit tcp2smc_exit(struct net *net)
{
	struct tcp2smc *own = net_generic(net, tcp2smc_id);

	unregister_net_sysctl_table(own->header);
}

static struct pernet_operations tcp2smc_ops = {
	.init = tcp2smc_init,
	.exit = tcp2smc_exit,
	.id = &tcp2smc_id,
	.size = sizeof(struct tcp2smc),
};

static int __init tcp2smc_load(void)
{
	return register_pernet_subsys(&tcp2smc_ops);
}

static void __exit tcp2smc_unload(void)
{
	unregister_pernet_subsys(&tcp2smc_ops);
}

module_init(tcp2smc_load);
module_exit(tcp2smc_unload);
MODULE_DESCRIPTION("a net.smc.tcp2smc that does nothing");
MODULE_LICENSE("Dual MIT/GPL");
