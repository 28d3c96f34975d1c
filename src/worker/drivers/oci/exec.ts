import { spawn } from 'node:child_process'
import { closeSync } from 'node:fs'
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Readable, Writable } from 'node:stream'
import type { Log } from '../../../lib/log.ts'
import { ExecFailure } from '../../channel/guest.ts'
import type { Guest, GuestExec, GuestProcess } from '../../channel/guest.ts'
import type { Container } from './container.ts'
import { planProcess, readProcessBase } from './exec-plan.ts'
import type { ProcessBase, ProcessPlan } from './exec-plan.ts'
import { exitCodeOf } from './exec-status.ts'
import type { RuntimeExit } from './exec-status.ts'
import { makeFifoPool } from './fifo-pool.ts'
import type { FifoPool } from './fifo-pool.ts'
import { makePidFiles } from './pid-file.ts'
import type { PidFiles } from './pid-file.ts'
import { innerPid, makeProcessGroup } from './process-group.ts'

export type ContainerGuestDeps = { readonly log: Log }

/**
 * Runs processes in a container by its runtime's `exec`. One guest serves any number of channels of its container. It
 * needs root, and the container's bundle in `runDir`.
 */
export function makeContainerGuest(container: Container, deps: ContainerGuestDeps): Guest {
  const pool = makeFifoPool(container.runDir, deps.log)
  const launcher: Launcher = { container, pool, pidFiles: makePidFiles(pool.folder), log: deps.log }
  let base: Promise<ProcessBase> | null = null
  let count = 0
  return {
    async exec(request) {
      base ??= readProcessBase(container.runDir)
      const plan = await planProcess(container, await base, request)
      return await launch(launcher, plan, { request, name: String(count++) })
    },
  }
}

type Launcher = {
  readonly container: Container
  readonly pool: FifoPool
  readonly pidFiles: PidFiles
  readonly log: Log
}

type Launch = { readonly request: GuestExec; readonly name: string }

/** The runtime's command line while it carries one process. */
type Carrier = {
  readonly cliPid: number
  readonly stdin: Writable
  readonly stdout: Readable
  readonly stderr: Readable | null
  readonly ended: Promise<RuntimeExit>
}

async function launch(launcher: Launcher, plan: ProcessPlan, { name }: Launch): Promise<GuestProcess> {
  const { container, pool } = launcher
  const files = { plan: join(pool.folder, `${name}.json`), pid: join(pool.folder, `${name}.pid`) }
  await writeFile(files.plan, JSON.stringify(plan), { mode: 0o600 })
  const command = [...container.runtime, 'exec', '--process', files.plan, '--pid-file', files.pid, container.id]
  try {
    const carrier = await startPiped(pool, command)
    const pid = await launcher.pidFiles.wait(files.pid, carrier.ended)
    if (pid === null) throw await explain(carrier)
    return adopt(container, carrier, pid)
  } finally {
    await Promise.all([rm(files.plan, { force: true }), rm(files.pid, { force: true })])
  }
}

function adopt(container: Container, carrier: Carrier, pid: number): GuestProcess {
  const group = makeProcessGroup(container.initPid, [pid, carrier.cliPid])
  const sent = new Set<number>()
  return {
    pid: innerPid(pid) ?? pid,
    stdin: carrier.stdin,
    stdout: carrier.stdout,
    stderr: carrier.stderr,
    resize() {
      // no terminal
    },
    signal(signal) {
      sent.add(signal)
      group.signal(signal)
    },
    exited: carrier.ended.then((exit) => exitCodeOf(exit, sent)),
  }
}

async function startPiped(pool: FifoPool, command: readonly string[]): Promise<Carrier> {
  const [stdin, stdout, stderr] = await Promise.all([
    pool.take('to-child'),
    pool.take('from-child'),
    pool.take('from-child'),
  ])
  const pipes = [stdin, stdout, stderr]
  try {
    const { cliPid, ended } = await spawnCli(command, [stdin.childFd, stdout.childFd, stderr.childFd])
    return { cliPid, ended, stdin: stdin.socket, stdout: stdout.socket, stderr: stderr.socket }
  } catch (error) {
    for (const pipe of pipes) pipe.socket.destroy()
    throw error
  } finally {
    for (const pipe of pipes) closeSync(pipe.childFd)
  }
}

/** Starts a command line in a session of its own, away from this process's signals. */
async function spawnCli(
  command: readonly string[],
  stdio: readonly [number, number, number],
): Promise<{ readonly cliPid: number; readonly ended: Promise<RuntimeExit> }> {
  const [file = '', ...args] = command
  const child = spawn(file, args, { stdio: [...stdio], detached: true, env: { PATH: process.env['PATH'] } })
  const ended = new Promise<RuntimeExit>((resolve) => {
    child.once('exit', (code) => {
      resolve({ code })
    })
  })
  if (child.pid === undefined) {
    const cause = await new Promise<Error>((resolve) => child.once('error', resolve))
    throw new Error(`the runtime ${file} could not be started`, { cause })
  }
  return { cliPid: child.pid, ended }
}

/** The most of a runtime's last words that is told to the client, in bytes. */
const LAST_WORDS_BYTES = 1000

/** What to say when a runtime ended without having started the process, though all that can be checked was fine. */
async function explain(carrier: Carrier): Promise<ExecFailure> {
  carrier.stdin.destroy()
  const output = carrier.stderr ?? carrier.stdout
  const chunks: Buffer[] = []
  for await (const chunk of output) {
    if (chunk instanceof Buffer) chunks.push(chunk)
  }
  carrier.stdout.destroy()
  const said = Buffer.concat(chunks).toString('utf8').trim().slice(-LAST_WORDS_BYTES)
  return new ExecFailure(
    'other',
    `the runtime could not start the process: ${said === '' ? 'it did not say why' : said}`,
  )
}
