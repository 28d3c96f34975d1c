import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import type { Container } from '../container.ts'
import type { ForkServerProcess, Launched, Launcher } from '../run/runtime/launcher.ts'
import { encodeForkRequest } from './fork-request.ts'
import { makeForkServerSpec, readProcessDefaults, type ProcessDefaults, type ProcessSpec } from './process-spec.ts'

/**
 * The fork servers of a worker's containers: one process in a container that starts its commands (`perl/guest/fork-server.pl`). Only
 * crun and runc have them, because their containers' processes are processes of the machine.
 */
export type ForkServers = {
  /** Starts the server of a container ahead of its first command. Never rejects. */
  prepare(container: ForkServerContainer): Promise<void>
  /** What all processes of a container have in common. Reads the container's bundle, unless its server was prepared. */
  defaultsOf(container: Pick<ForkServerContainer, 'id' | 'runDir'>): ProcessDefaults
  /** Whether a container's server was prepared by this worker process and nothing was started in it since. */
  isUnused(id: string): boolean
  /**
   * Returns what starts a process by the server of a container. It rejects if the process was not started. Resolves with null if only
   * the runtime can start the process: for the first command of a container whose server wasn't prepared, after a failure, and
   * for what a fork server can't do. Never rejects.
   */
  starterOf(container: ForkServerContainer, spec: ProcessSpec): Promise<Starter | null>
}

/** Starts a process with these files as its standard streams. */
type Starter = (files: readonly [string, string, string]) => Promise<Launched>

export type ForkServerContainer = Pick<Container, 'id' | 'runtime' | 'runDir' | 'commandCgroups'>

type Deps = {
  readonly launcher: Launcher
  readonly clock: Pick<Clock, 'monotonicMs'>
  readonly log: Log
}

type Server = { readonly process: ForkServerProcess; readonly capabilities: ReadonlySet<string> }
/** What is known of a container. `server` is null before the first start and after a failure. `base` is set until it is asked for. */
type Known = {
  server: Promise<Server | null> | null
  notBeforeMs: number
  isUnused: boolean
  base: ProcessDefaults | null
}

/** How long after a server's start the next one is started at the earliest. A sandbox may kill its server again and again. */
const RESTART_MS = 10_000
/** The most containers that are remembered. One that was forgotten counts as new. */
const KEPT_LIMIT = 8_192

/** Makes the servers of a worker, none of which runs yet. They end with the launcher. */
export function makeForkServers({ launcher, clock, log }: Deps): ForkServers {
  const known = new Map<string, Known>()

  const knownOf = (id: string): Known => {
    const found = known.get(id) ?? { server: null, notBeforeMs: -Infinity, isUnused: false, base: null }
    known.delete(id)
    known.set(id, found)
    const [oldest] = known.keys()
    if (known.size > KEPT_LIMIT && oldest !== undefined) known.delete(oldest)
    return found
  }
  const open = async (container: ForkServerContainer, entry: Known): Promise<Server | null> => {
    try {
      const base = readProcessDefaults(container.runDir)
      if (entry.isUnused) entry.base = base
      const server = await openServer(launcher, container, base)
      if (server === null) entry.notBeforeMs = Infinity // it has no toolbox
      void server?.process.ended.then(() => {
        entry.server = null
      })
      return server
    } catch (error) {
      log.debug({ error, container_id: container.id }, 'a fork server could not be started')
      entry.server = null
      return null
    }
  }
  const serverOf = (container: ForkServerContainer, entry: Known): Promise<Server | null> => {
    if (entry.server === null && clock.monotonicMs() >= entry.notBeforeMs) {
      entry.notBeforeMs = clock.monotonicMs() + RESTART_MS
      entry.server = open(container, entry)
    }
    return entry.server ?? Promise.resolve(null)
  }

  return {
    async prepare(container) {
      const entry = knownOf(container.id)
      entry.isUnused = true
      await serverOf(container, entry)
    },
    defaultsOf({ id, runDir }) {
      const entry = known.get(id)
      const base = entry?.base ?? readProcessDefaults(runDir)
      if (entry !== undefined) entry.base = null // whoever asked keeps them
      return base
    },
    isUnused: (id) => known.get(id)?.isUnused ?? false,
    async starterOf(container, spec) {
      const isFirst = !known.has(container.id)
      const entry = knownOf(container.id)
      entry.isUnused = false
      // A server costs as much as a command by the runtime, so a sandbox with one command needs none.
      const server = isFirst ? null : await serverOf(container, entry)
      const request = server === null ? null : encodeForkRequest(spec, server.capabilities)
      return server === null || request === null ? null : (files) => server.process.run(request, files)
    },
  }
}

/** Starts the server of a container. Resolves with null if the container has no toolbox. Rejects if the runtime fails. */
async function openServer(
  launcher: Launcher,
  { id, runtime, runDir, commandCgroups }: ForkServerContainer,
  base: ProcessDefaults,
): Promise<Server | null> {
  const spec = makeForkServerSpec(base)
  if (spec === null) return null
  const [file, pidFile] = [join(runDir, 'fork-server.json'), join(runDir, 'fork-server.pid')]
  try {
    await writeFile(file, JSON.stringify(spec), { mode: 0o600 })
    const command = [...runtime, 'exec', '--detach', '--process', file, '--pid-file', pidFile, id]
    const process = await launcher.startForkServer(command, { cgroups: commandCgroups, pidFile })
    const left = await process.left
    if (left === null) throw new Error('the runtime started no process')
    return { process, capabilities: base.capabilities }
  } finally {
    await Promise.all([file, pidFile].map((path) => rm(path, { force: true })))
  }
}
