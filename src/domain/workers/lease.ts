/** How long a worker may go without a sync before its runs are called lost, in milliseconds. */
export const WORKER_LEASE_MS = 30_000

/** When a worker that can't sync destroys its runs, in milliseconds: early enough to be done before the lease ends. */
export const SELF_FENCE_MS = 20_000
