/** Lets callers that want the same thing at the same time share one run of the work. */
export interface SingleFlight<Result> {
  /**
   * Joins the work under `key`, or begins it. A caller whose signal aborts leaves with the signal's reason; the work is
   * aborted when its last caller has left. `isLeader` tells whether this caller began it.
   */
  join(key: string, signal: AbortSignal, work: (signal: AbortSignal) => Promise<Result>): Flight<Result>
}

export type Flight<Result> = { readonly isLeader: boolean; readonly result: Promise<Result> }

type Airborne<Result> = { readonly result: Promise<Result>; readonly abort: AbortController; callers: number }

/** Shares work within this process; it remembers nothing of work that has ended. */
export function makeSingleFlight<Result>(): SingleFlight<Result> {
  const airborne = new Map<string, Airborne<Result>>()

  function begin(key: string, work: (signal: AbortSignal) => Promise<Result>): Airborne<Result> {
    const abort = new AbortController()
    const result = work(abort.signal).finally(() => {
      if (airborne.get(key) === flight) airborne.delete(key)
    })
    const flight: Airborne<Result> = { result, abort, callers: 0 }
    airborne.set(key, flight)
    return flight
  }

  async function wait(key: string, flight: Airborne<Result>, signal: AbortSignal): Promise<Result> {
    flight.callers += 1
    const left = Promise.withResolvers<never>()
    const leave = (): void => {
      left.reject(signal.reason)
    }
    signal.addEventListener('abort', leave, { once: true })
    if (signal.aborted) leave()
    try {
      return await Promise.race([flight.result, left.promise])
    } finally {
      signal.removeEventListener('abort', leave)
      flight.callers -= 1
      if (flight.callers === 0) {
        if (airborne.get(key) === flight) airborne.delete(key)
        flight.abort.abort(signal.reason)
      }
    }
  }

  return {
    join(key, signal, work) {
      const joined = airborne.get(key)
      const flight = joined ?? begin(key, work)
      return { isLeader: joined === undefined, result: wait(key, flight, signal) }
    },
  }
}
