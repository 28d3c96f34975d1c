import { runCommand, tryCommand, type CommandResult } from '../../../lib/run-command.ts'
import { vmEnvironment, type MicrosandboxInstallation } from './installation.ts'

/** The runtime's status of one of its sandboxes. */
export type VmStatus = 'running' | 'stopped' | 'crashed' | 'absent'

/** Calls of the runtime's command line program `msb`. Every call may be repeated. */
export type MsbCli = {
  status(name: string): Promise<VmStatus>
  /**
   * Asks the guest to flush its disk and shut down, and kills it after `timeoutSecs`. Succeeds for an unknown or stopped
   * sandbox.
   */
  stop(name: string, timeoutSecs: number): Promise<void>
  /** Kills a sandbox's processes and deletes its disk. Succeeds for an unknown sandbox. */
  remove(name: string): Promise<void>
  /** Imports an archive as an image. */
  load(archive: string, reference: string, signal: AbortSignal): Promise<void>
  images(): Promise<readonly string[]>
  removeImage(reference: string): Promise<void>
}

const TIMEOUT_MS = 60_000
/** How long an import may take. An import writes the whole image again, as a file system for the guest. */
const LOAD_TIMEOUT_MS = 900_000

/** Creates the calls of an installation's program for the sandboxes in one home. */
export function makeMsbCli({ msb }: MicrosandboxInstallation, home: string): MsbCli {
  const env = vmEnvironment(home)
  const attempt = (args: readonly string[], timeoutMs = TIMEOUT_MS): Promise<CommandResult> =>
    tryCommand(msb, args, { timeoutMs, env, cwd: home })
  const ask = async (args: readonly string[]): Promise<unknown> =>
    JSON.parse((await runCommand(msb, args, { timeoutMs: TIMEOUT_MS, env, cwd: home })).stdout)
  const status = async (name: string): Promise<VmStatus> => {
    const found = asList(await ask(['list', '--format', 'json'])).find((one) => one['name'] === name)
    return found === undefined ? 'absent' : statusOf(found['status'])
  }
  /**
   * Throws if a call failed and the sandbox is not in the expected state. The program has one exit code for all failures,
   * including harmless ones.
   */
  const throwUnless = async (result: CommandResult, isReached: () => Promise<boolean>): Promise<void> => {
    if (result.code !== 0 && !(await isReached())) throw new Error(`msb: ${result.stderr.trim().slice(-500)}`)
  }
  return {
    status,
    async stop(name, timeoutSecs) {
      const result = await attempt(['stop', '-q', '-t', String(timeoutSecs), name], TIMEOUT_MS + timeoutSecs * 1000)
      await throwUnless(result, async () => (await status(name)) !== 'running')
    },
    async remove(name) {
      const result = await attempt(['remove', '-q', '-f', name])
      await throwUnless(result, async () => (await status(name)) === 'absent')
    },
    async load(archive, reference, signal) {
      await runCommand(msb, ['load', '-q', '-i', archive, '-t', reference], {
        timeoutMs: LOAD_TIMEOUT_MS,
        env,
        cwd: home,
        signal,
      })
    },
    async images() {
      return asList(await ask(['image', 'list', '--format', 'json'])).map((image) => String(image['reference']))
    },
    async removeImage(reference) {
      await attempt(['image', 'remove', reference])
    },
  }
}

function statusOf(word: unknown): VmStatus {
  if (word === 'Stopped' || word === 'Created') return 'stopped'
  return word === 'Crashed' ? 'crashed' : 'running'
}

function asList(value: unknown): readonly Readonly<Record<string, unknown>>[] {
  if (!Array.isArray(value)) throw new Error('the runtime did not return a list')
  return value.flatMap((item: unknown) => (typeof item === 'object' && item !== null ? [{ ...item }] : []))
}
