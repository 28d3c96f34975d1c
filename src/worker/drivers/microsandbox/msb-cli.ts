import { runCommand, tryCommand, type CommandResult } from '../../../lib/run-command.ts'
import { vmEnvironment, type MicrosandboxInstallation } from './installation.ts'

/** What the runtime says of one of its sandboxes. */
export type VmStatus = 'running' | 'stopped' | 'crashed' | 'absent'

/** The runtime's own program, for what it does in one call. Every call may be repeated. */
export type MsbCli = {
  status(name: string): Promise<VmStatus>
  /** The guest syncs and switches off; after `timeoutSecs` it is killed. An unknown or stopped one succeeds. */
  stop(name: string, timeoutSecs: number): Promise<void>
  /** Kills what runs of a sandbox and deletes its disk. An unknown one succeeds. */
  remove(name: string): Promise<void>
  /** Takes an archive in as an image. */
  load(archive: string, reference: string, signal: AbortSignal): Promise<void>
  images(): Promise<readonly string[]>
  removeImage(reference: string): Promise<void>
}

const TIMEOUT_MS = 60_000
/** A large image is written once more, as a file system of the guest's. */
const LOAD_TIMEOUT_MS = 900_000

/** The program of an installation, over the sandboxes of one home. */
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
  /** The program tells of a failure and of one that is none by the same exit code; what counts is how things stand. */
  const orStands = async (result: CommandResult, stands: () => Promise<boolean>): Promise<void> => {
    if (result.code !== 0 && !(await stands())) throw new Error(`msb: ${result.stderr.trim().slice(-500)}`)
  }
  return {
    status,
    async stop(name, timeoutSecs) {
      const result = await attempt(['stop', '-q', '-t', String(timeoutSecs), name], TIMEOUT_MS + timeoutSecs * 1000)
      await orStands(result, async () => (await status(name)) !== 'running')
    },
    async remove(name) {
      const result = await attempt(['remove', '-q', '-f', name])
      await orStands(result, async () => (await status(name)) === 'absent')
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
  if (!Array.isArray(value)) throw new Error('the runtime answered with something that is no list')
  return value.flatMap((item: unknown) => (typeof item === 'object' && item !== null ? [{ ...item }] : []))
}
