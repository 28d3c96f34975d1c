/** The job that the waiters run. */
export type WaitJob = {
  readonly host: string
  readonly port: number
  readonly authorization: string
  readonly ids: readonly string[]
  readonly status: string
}

/** The result of the waiters: the time of each answer, in milliseconds since 1970, and the failures. */
export type WaitsResult = {
  readonly arrivals: readonly (readonly [id: string, atMs: number])[]
  readonly failures: readonly string[]
}
