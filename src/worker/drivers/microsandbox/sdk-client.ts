import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { sendSignal } from '../../processes/process-identity.ts'
import { vmEnvironment } from './installation.ts'
import type { VmConfig } from './vm-config.ts'

/** Stands in the command line of a call, with what it is for, so that one whose worker died is found. */
export const SDK_CALL_MARK = 'sandyard-microvm-call'

export type SdkCall = {
  readonly home: string
  readonly request: SdkRequest
  /** What the call is for: its run, in the command line of the process. */
  readonly label: string
  /** An abort kills the call, and with it the virtual machine that it was starting: the runtime watches its starter. */
  readonly signal: AbortSignal
}

/** How long the SDK may take: it waits 180 s itself for a guest to answer (0.6.14), and bakes patches into the disk before. */
const TIMEOUT_MS = 400_000
/** The most of what it says on standard error that is kept, in characters. */
const WORDS_LIMIT = 500

/** Calls the SDK in a process of its own. Rejects with the signal's reason, or when the process dies without an answer. */
export async function callSdk({ home, request, label, signal }: SdkCall): Promise<SdkAnswer> {
  signal.throwIfAborted()
  const child = spawn(process.execPath, [join(import.meta.dirname, 'sdk-call.ts'), SDK_CALL_MARK, label], {
    detached: true, // a terminal's Ctrl-C is not for the virtual machines
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
  child.stdin.on('error', () => child.stdin.destroy()) // it ended without reading: its answer is missing below
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

/** What the process with the SDK is asked for, as one JSON text on its standard input. */
export type SdkRequest =
  /** Makes a sandbox and starts it. */
  | { readonly kind: 'create'; readonly config: VmConfig }
  /** Starts one that was made before. */
  | { readonly kind: 'start'; readonly name: string }
  /** Answers with the configuration that `createTestSandbox` would use, and makes nothing. */
  | { readonly kind: 'build'; readonly config: VmConfig }
  /** Answers with the path of a sandbox's agent socket. */
  | { readonly kind: 'socket'; readonly name: string }

/** How it answers, as one JSON text on its standard output. `code` is the SDK's own. */
export type SdkAnswer =
  | { readonly kind: 'done'; readonly value: unknown }
  | { readonly kind: 'failed'; readonly code: string; readonly message: string }
