import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { join } from 'node:path'
import type { ClientAnswer } from './well-behaved-client.ts'

const SCRIPT = join(import.meta.dirname, 'well-behaved-client-process.ts')

/**
 * A well-behaved client in a process of its own, so that the work of the test's process delays none of its requests.
 * Disposing of it stops it.
 */
export interface ForkedClient extends AsyncDisposable {
  /** The answers so far, in order. Throws if the process ended on its own. */
  readonly answers: readonly ClientAnswer[]
  /** Lets the client finish its request, then ends the process. Resolves with all answers. May be repeated. */
  stop(): Promise<readonly ClientAnswer[]>
}

/** Starts a client of a server. The names of its sandboxes begin with `prefix`. */
export function forkClient(server: { readonly url: string; readonly key: string }, prefix: string): ForkedClient {
  const child = fork(SCRIPT, [server.url, server.key, prefix])
  const answers: ClientAnswer[] = []
  let isStopping = false
  child.on('message', (answer) => {
    answers.push(answer as ClientAnswer) // the script sends nothing else
  })
  const closed = new Promise((resolve) => {
    child.once('close', resolve) // after the last message
    child.once('error', resolve) // it could not be started
  })
  const stop = async (): Promise<readonly ClientAnswer[]> => {
    if (!isStopping && child.connected) child.send('stop')
    isStopping = true
    const ended = await closed
    assert.equal(ended, 0, `the process of the client ended with ${String(ended)}`)
    return answers
  }
  return {
    get answers() {
      assert.ok(isStopping || child.connected, 'the process of the client ended on its own')
      return answers
    },
    stop,
    [Symbol.asyncDispose]: async () => void (await stop()),
  }
}
