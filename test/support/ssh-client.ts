import { spawn, type ChildProcess } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { runCommand, tryCommand, type CommandResult } from '../../src/lib/run-command.ts'
import { TIMEOUT_FACTOR } from './timeout-factor.ts'

const LIMIT_MS = 15_000 * TIMEOUT_FACTOR

/** OpenSSH's programs with a key of their own, for the SSH server of a test. */
export type SshClient = {
  /** A temporary folder for the test's files, in which the programs run. */
  readonly dir: string
  /** The configuration file, in which any host name means the server. */
  readonly config: string
  readonly publicKey: string
  /** `ssh OPTIONS… USER@sandyard COMMAND…`. */
  ssh(user: string, command?: readonly string[], more?: Options): Promise<CommandResult>
  /** Runs another program, such as `scp`, with `-F CONFIG` before its arguments. */
  run(program: string, args: readonly string[], input?: string): Promise<CommandResult>
  /** Starts `ssh` and leaves it running. */
  start(args: readonly string[]): ChildProcess
  remove(): void
}

type Options = {
  readonly options?: readonly string[]
  readonly input?: string | Buffer
  /** Variables of the client, in addition to those of this process. */
  readonly env?: Readonly<Record<string, string>>
}

/** Makes a key and a configuration for the server on a port of this machine. */
export async function makeSshClient(port: number): Promise<SshClient> {
  const dir = mkdtempSync(join(tmpdir(), 'sandyard-ssh-client-'))
  await runCommand('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', join(dir, 'key')], { timeoutMs: LIMIT_MS })
  const settings = {
    HostName: '127.0.0.1',
    Port: String(port),
    IdentityFile: join(dir, 'key'),
    IdentitiesOnly: 'yes',
    UserKnownHostsFile: join(dir, 'known'),
    StrictHostKeyChecking: 'accept-new',
    BatchMode: 'yes',
    LogLevel: 'ERROR',
    ExitOnForwardFailure: 'yes',
    SendEnv: 'LANG LC_* SECRET_*',
  }
  const config = join(dir, 'config')
  writeFileSync(
    config,
    ['Host *', ...Object.entries(settings).map(([key, value]) => `  ${key} ${value}`), ''].join('\n'),
  )
  const options = { timeoutMs: LIMIT_MS, cwd: dir }
  return {
    dir,
    config,
    publicKey: readFileSync(join(dir, 'key.pub'), 'utf8').trim(),
    ssh: (user, command = [], { options: more = [], input = '', env = {} } = {}) =>
      tryCommand('ssh', ['-F', config, ...more, `${user}@sandyard`, ...command], {
        ...options,
        input,
        env: { ...process.env, ...env },
      }),
    run: (program, args, input = '') => tryCommand(program, ['-F', config, ...args], { ...options, input }),
    start: (args) => spawn('ssh', ['-F', config, ...args], { stdio: ['pipe', 'pipe', 'pipe'], cwd: dir }),
    remove() {
      rmSync(dir, { recursive: true, force: true })
    },
  }
}
