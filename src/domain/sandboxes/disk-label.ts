/**
 * The label by which a request says how long the files of a sandbox live. With `run`, they may be gone when the sandbox starts again, so
 * that workers without disks can run it.
 */
export const DISK_LABEL = 'sandyard.disk'
export const DISK_OF_RUN = 'run'
