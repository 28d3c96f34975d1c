/** What the waiters are to wait for. */
export type WaitJob = {
  readonly host: string
  readonly port: number
  readonly authorization: string
  readonly ids: readonly string[]
  readonly status: string
}

/** When each answer came, in milliseconds since 1970, and what went wrong. */
export type WaitsResult = {
  readonly arrivals: readonly (readonly [id: string, atMs: number])[]
  readonly failures: readonly string[]
}
