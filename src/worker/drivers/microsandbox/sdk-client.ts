import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { extname, join } from 'node:path'
import { text } from 'node:stream/consumers'
import { sendSignal } from '../../processes/process-identity.ts'
import { vmEnvironment } from './installation.ts'
import type { VmConfig } from './vm-config.ts'
import { inSurroundings, type VmSurroundings } from './vm-surroundings.ts'

/**
 * An argument in the command line of each SDK process, followed by the run's id. The next worker finds the SDK
 * processes of a dead worker by this argument.
 */
export const SDK_CALL_MARK = 'sandyard-microvm-call'

/** The program is TypeScript in the repository and JavaScript in the npm package, as this file is. */
const SDK_CALL_PROGRAM = join(import.meta.dirname, `sdk-call${extname(import.meta.filename)}`)

type SdkCall = {
  readonly home: string
  readonly request: SdkRequest
  /** The id of the run for which the SDK is called. It becomes an argument of the process. */
  readonly label: string
  /** Where the runtime runs. Null: as the worker does, for calls that start no virtual machine. */
  readonly surroundings: VmSurroundings | null
  /**
   * An abort kills the SDK process. A virtual machine that this process was starting ends too, because the runtime
   * watches its parent process.
   */
  readonly signal: AbortSignal
}

/**
 * How long a call may take. The SDK applies patches to the disk and then waits up to 180 s for the guest to answer (0.6.14).
 */
const TIMEOUT_MS = 400_000
/** How many characters of the SDK process's error output are reported. */
const WORDS_LIMIT = 500

/**
 * Calls the SDK in a separate process. When the signal aborts, it rejects with the signal's reason. It also rejects if the
 * process ends without an answer.
 */
export async function callSdk({ home, request, label, surroundings, signal }: SdkCall): Promise<SdkAnswer> {
  signal.throwIfAborted()
  const own = [process.execPath, SDK_CALL_PROGRAM, SDK_CALL_MARK, label]
  const [program = '', ...words] = surroundings === null ? own : inSurroundings(surroundings, own)
  const child = spawn(program, words, {
    detached: true, // keeps Ctrl-C in the worker's terminal from reaching the virtual machines
    stdio: ['pipe', 'pipe', 'pipe'],
    cwd: '/',
    env: { ...vmEnvironment(home), ...(surroundings === null ? {} : { SSL_CERT_FILE: surroundings.certificates }) },
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
    const [said, complaint] = await Promise.all([text(child.stdout), text(child.stderr), closed])
    either.throwIfAborted()
    const answer = said === '' ? null : (JSON.parse(said) as SdkAnswer) // written by sdk-call.ts
    if (answer !== null) return answer
    throw new Error(
      `the SDK's process ended with ${String(child.exitCode ?? child.signalCode)}: ${complaint.slice(-WORDS_LIMIT)}`,
    )
  } catch (error) {
    either.throwIfAborted()
    throw error
  } finally {
    either.removeEventListener('abort', kill)
  }
}

/** Variables to set and to remove. */
export type EnvChange = { readonly set: Readonly<Record<string, string>>; readonly removed: readonly string[] }

/** A request to the SDK's process, sent as one JSON document on its standard input. */
export type SdkRequest =
  /** Creates a sandbox and starts it. */
  | { readonly kind: 'create'; readonly config: VmConfig }
  /** Starts an existing sandbox, after changing its environment. Null: it stays as it is. */
  | { readonly kind: 'start'; readonly name: string; readonly env: EnvChange | null }
  /** Returns the configuration that `create` would use, without creating a sandbox. */
  | { readonly kind: 'build'; readonly config: VmConfig }
  /** Returns the path of a sandbox's agent socket. */
  | { readonly kind: 'socket'; readonly name: string }

/** The answer of the SDK's process, sent as one JSON document on its standard output. `code` is the SDK's error code. */
export type SdkAnswer =
  | { readonly kind: 'done'; readonly value: unknown }
  | { readonly kind: 'failed'; readonly code: string; readonly message: string }
