import { makeFairSemaphore, runFairly } from '../../lib/turns/fair-semaphore.ts'

/**
 * How many questions of all sandboxes, and of one, wait for the worker's answer at a time. So the answers under way
 * take little memory, and no sandbox delays those of others. More questions of a sandbox wait in the egress process.
 */
const LIMITS = { permits: 512, permitsPerKey: 32, waitersPerKey: 4_096 } as const

export type NameQuestion = { readonly id: number; readonly sandbox: string; readonly address: string }

/** The questions to the worker for the names that are tied to addresses. */
export type NameQuestions = {
  /** Asks, and resolves with the names. Rejects if too many questions of the sandbox wait. */
  ask(sandbox: string, address: string): Promise<readonly string[]>
  /** Takes an answer. One to an unknown question is fine. */
  answer(id: number, names: readonly string[]): void
}

export function makeNameQuestions(send: (question: NameQuestion) => void): NameQuestions {
  const semaphore = makeFairSemaphore(LIMITS)
  const asked = new Map<number, (names: readonly string[]) => void>()
  let lastId = 0

  function sendQuestion(sandbox: string, address: string): Promise<readonly string[]> {
    const id = ++lastId
    const { promise, resolve } = Promise.withResolvers<readonly string[]>()
    asked.set(id, resolve)
    send({ id, sandbox, address })
    return promise
  }

  return {
    ask: (sandbox, address) =>
      runFairly(semaphore, sandbox, {
        work: () => sendQuestion(sandbox, address),
        onFull: () => new Error('too many connections of the sandbox wait for their names'),
      }),
    answer(id, names) {
      asked.get(id)?.(names)
      asked.delete(id)
    },
  }
}
