import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { sendSignal } from '../../processes/process-identity.ts'
import { vmEnvironment } from './installation.ts'
import type { VmConfig } from './vm-config.ts'

/** Marks the command line of a call, followed by its run, so that a call whose worker died can be found. */
export const SDK_CALL_MARK = 'sandyard-microvm-call'

type SdkCall = {
  readonly home: string
  readonly request: SdkRequest
  /** The run that the call is for; it stands in the process's command line. */
  readonly label: string
  /** An abort kills the call. The virtual machine that it was starting ends too, because the runtime watches its parent. */
  readonly signal: AbortSignal
}

/** How long the SDK may take. It itself waits 180 s for a guest to answer (0.6.14), after it applied patches to the disk. */
const TIMEOUT_MS = 400_000
/** How much of its error output is reported, in characters. */
const WORDS_LIMIT = 500

/** Calls the SDK in a separate process. Rejects with the signal's reason, or when the process ends without an answer. */
export async function callSdk({ home, request, label, signal }: SdkCall): Promise<SdkAnswer> {
  signal.throwIfAborted()
  const child = spawn(process.execPath, [join(import.meta.dirname, 'sdk-call.ts'), SDK_CALL_MARK, label], {
    detached: true, // so that Ctrl-C in the worker's terminal does not reach the virtual machines
    stdio: ['pipe', 'pipe', 'pipe'],
    cwd: '/',
    env: vmEnvironment(home),
  })
  const closed = once(child, 'close')
  const kill = (): void => {
    if (child.pid !== undefined) sendSignal(-child.pid, 'SIGKILL')
  }
  const either = AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)])
  either.addEventListener('abort', kill, { once: true })
  child.stdin.on('error', () => child.stdin.destroy()) // the process ended early; the missing answer is handled below
  child.stdin.end(JSON.stringify(request))
  try {
    const [said, words] = await Promise.all([text(child.stdout), text(child.stderr), closed])
    either.throwIfAborted()
    const answer = said === '' ? null : (JSON.parse(said) as SdkAnswer) // written by sdk-call.ts
    if (answer !== null) return answer
    throw new Error(
      `the SDK's process ended with ${String(child.exitCode ?? child.signalCode)}: ${words.slice(-WORDS_LIMIT)}`,
    )
  } catch (error) {
    either.throwIfAborted()
    throw error
  } finally {
    either.removeEventListener('abort', kill)
  }
}

/** A request to the process with the SDK, as one JSON document on its standard input. */
export type SdkRequest =
  /** Creates a sandbox and starts it. */
  | { readonly kind: 'create'; readonly config: VmConfig }
  /** Starts a sandbox that exists. */
  | { readonly kind: 'start'; readonly name: string }
  /** Returns the configuration that `create` would use, and creates nothing. */
  | { readonly kind: 'build'; readonly config: VmConfig }
  /** Returns the path of a sandbox's agent socket. */
  | { readonly kind: 'socket'; readonly name: string }

/** The answer, as one JSON document on standard output. `code` is the SDK's error code. */
export type SdkAnswer =
  | { readonly kind: 'done'; readonly value: unknown }
  | { readonly kind: 'failed'; readonly code: string; readonly message: string }
