/**
 * Who decides what sandboxes reach. `prove`: NetworkPolicies that the cluster is proved to enforce. `rules`: rules that
 * each Pod loads into its own network namespace, proved too, beside the same policies. `cluster`: whatever the cluster
 * does.
 */
export type NetworkMode = 'prove' | 'rules' | 'cluster'
