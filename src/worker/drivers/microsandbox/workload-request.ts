/** What the program `workload.ts` is told by a file, whose path is its first argument after the mark. */
export type WorkloadRequest = {
  readonly socket: string
  readonly end_file: string
  readonly command: readonly string[]
  readonly env: readonly string[]
  readonly cwd: string | null
  readonly user: string | null
}

/** Stands in its command line, so that the process is told from any other. */
export const WORKLOAD_MARK = 'sandyard-microvm-workload'
