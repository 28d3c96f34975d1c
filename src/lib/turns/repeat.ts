import { interruptibleSleep, type Clock } from '../clock.ts'

/** Work that is repeated until it is closed. */
export type Repetition = {
  /** Ends the repetition. Resolves after the work in progress. */
  close(): Promise<void>
}

type RepeatInput = {
  /** The pause between the end of the work and its next start. */
  readonly pauseMs: number
  readonly clock: Pick<Clock, 'sleep'>
  /** Hears of each failure. The work is repeated all the same. */
  readonly onFailure: (error: unknown) => void
}

/** Does the work at once, and again after each pause. */
export function repeat(work: () => Promise<void> | void, { pauseMs, clock, onFailure }: RepeatInput): Repetition {
  const closing = new AbortController()
  const run = async (): Promise<void> => {
    while (!closing.signal.aborted) {
      try {
        await work()
      } catch (error) {
        onFailure(error)
      }
      await interruptibleSleep(clock, pauseMs, closing.signal)
    }
  }
  const running = run()
  return {
    async close() {
      closing.abort()
      await running
    },
  }
}
