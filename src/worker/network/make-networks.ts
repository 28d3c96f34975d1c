import { cidr, formatIpv4Cidr, type Cidr } from '../../domain/network/cidr.ts'
import type { RunId } from '../../domain/ids.ts'
import { compilePolicy } from '../../domain/network/network-policy.ts'
import type { NetworkSpec } from '../../domain/spec/spec.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { Random } from '../../lib/random.ts'
import { localCommands, type CommandRunner } from '../../lib/run-command.ts'
import { closeHost, openHost } from './host-side.ts'
import { installation, netnsPath, slotAddresses, UPLINK_SLOT, type Installation } from './installation.ts'
import { startDnsForwarder } from './dns-forwarder.ts'
import { createIsolated, createRouter, removeAll, removeSandboxes } from './namespaces.ts'
import { attachRules, cutRules, detachRules, sharedRules } from './packet-filter.ts'
import { choosePool } from './pool.ts'
import { isAlive, makeRecords, namespaceInode, type Records, type RunRecord } from './records.ts'
import { makeRouterRules, type RouterRules } from './router-rules.ts'
import { makeSlots } from './slots.ts'
import type { SandboxNetwork, SandboxNetworks } from './sandbox-network.ts'
import { deviceNames, namespaceNames, nft } from './system.ts'
import { makeTurns } from './turns.ts'

export type NetworksOptions = {
  /** This installation's own directory for its records; made when it is not there. */
  readonly dir: string
  /** The block that sandboxes' addresses come from; another is chosen where a route of the host meets it. */
  readonly pool: string
  /** 1 to 6 of a-z and 0-9; sets this installation's names apart from others on the machine. */
  readonly namePrefix: string
  /** Where names are asked for, in order of preference; see `readHostResolvers`. */
  readonly hostResolvers: readonly string[]
  /** Blocks that no tenant's policy opens, such as the control plane's address. */
  readonly hardDeny: readonly string[]
  /** Refuse answers that give a public name a special address. */
  readonly hasRebindProtection: boolean
  /** How many namespaces are kept made before they are asked for. */
  readonly readyAhead: number
  readonly commands: CommandRunner
  readonly clock: Clock
  readonly random: Random
  readonly log: Log
}

/**
 * Opens this machine for sandbox networks and adopts those that runs already have. Needs root, iproute2 and nftables:
 * `probeNetwork` tells before. `close` takes everything back when no run is left; otherwise the next start adopts.
 */
export async function makeNetworks(options: NetworksOptions): Promise<SandboxNetworks> {
  const names = installation(options.namePrefix, options.commands)
  const records = await makeRecords(options.dir)
  const pool = await ensureRouter(names, records, options)
  const hardDeny = [pool, ...options.hardDeny.map(cidr)]
  const address = slotAddresses(pool, UPLINK_SLOT).gateway
  const forwarder = await startDnsForwarder({ ...options, address, resolvers: options.hostResolvers })
  const dns = { address, port: forwarder.port }
  await nft(names.commands, sharedRules(dns), names.router)

  let openedAtMs = Number.NEGATIVE_INFINITY
  async function openForwarding(): Promise<void> {
    if (options.clock.monotonicMs() - openedAtMs < REOPEN_AFTER_MS) return
    openedAtMs = options.clock.monotonicMs()
    await openHost(names, { pool, dns })
  }
  await openForwarding()

  const router = makeRouterRules(names)
  const live = await adoptRuns({ names, router }, records)
  const slots = makeSlots({
    names,
    pool,
    taken: live,
    readyAhead: options.readyAhead,
    clock: options.clock,
    log: options.log,
    openForwarding,
  })
  await removeStrangers(names, live)
  slots.refill()

  async function newRecord(run: RunId, spec: NetworkSpec): Promise<RunRecord> {
    const slot = spec.enabled ? await slots.take() : slots.reserve()
    try {
      if (!spec.enabled) await createIsolated(names, slot)
      const namespace = names.sandbox(slot)
      const inode = await namespaceInode(namespace)
      if (inode === null) throw new Error(`the network namespace ${namespace} vanished while it was made`)
      const network = spec.enabled ? { mark: newMark(options.random), policy: policyText(spec) } : null
      const record = { slot, namespace, inode, network }
      await records.writeRun(run, record)
      return record
    } catch (error) {
      await removeSandboxes(names, [slot])
      slots.free(slot)
      throw error
    }
  }

  async function apply(spec: NetworkSpec, record: RunRecord): Promise<SandboxNetwork> {
    const { slot, network } = record
    const path = netnsPath(record.namespace)
    if (network === null) return { netnsPath: path, ipv4: null, resolvers: [] }
    const { gateway, sandbox } = slotAddresses(pool, slot)
    const { egress } = compilePolicy(spec.policy, { gateway: cidr(gateway), hardDeny })
    const rules = attachRules({
      slot,
      gateway,
      address: sandbox,
      mark: network.mark,
      egress,
      maxConnections: spec.max_connections,
    })
    await router.apply(rules)
    return { netnsPath: path, ipv4: sandbox, resolvers: [gateway] }
  }

  async function attach(run: RunId, spec: NetworkSpec): Promise<SandboxNetwork> {
    const seen = await records.readRun(run)
    if (seen !== null && (seen.network !== null) === spec.enabled && (await isAlive(seen))) {
      if (seen.network === null || seen.network.policy === policyText(spec)) return apply(spec, seen)
      const changed = { ...seen, network: { mark: newMark(options.random), policy: policyText(spec) } }
      await router.apply(cutRules(seen.slot, seen.network.mark))
      await records.writeRun(run, changed)
      return apply(spec, changed)
    }
    if (seen !== null) await detach(run)
    return apply(spec, await newRecord(run, spec))
  }

  async function detach(run: RunId): Promise<void> {
    const record = await records.readRun(run)
    if (record === null) return
    await release({ names, router }, record)
    await records.removeRun(run)
    slots.free(record.slot)
  }

  const turns = makeTurns()
  return {
    attach: (run, spec) => turns.take(run, () => attach(run, spec)),
    detach: (run) => turns.take(run, () => detach(run)),
    list: async () => [...(await aliveRuns(records)).keys()],
    close: async () => {
      await slots.close()
      await forwarder.close()
      if ((await records.runs()).size === 0) await takeBack(names, records)
    },
  }
}

/** How often the host is looked at for devices that came since, at most: it takes four processes. */
const REOPEN_AFTER_MS = 10_000

/** Removes all that an installation has on this machine, the networks of runs included. May be repeated. */
export async function removeNetworks(options: { readonly dir: string; readonly namePrefix: string }): Promise<void> {
  await takeBack(installation(options.namePrefix, localCommands), await makeRecords(options.dir))
}

async function takeBack(names: Installation, records: Records): Promise<void> {
  await closeHost(names)
  await removeAll(names)
  await records.clear()
}

/** The pool in use; makes the router unless a whole one is there. */
async function ensureRouter(names: Installation, records: Records, options: { readonly pool: string }): Promise<Cidr> {
  const record = await records.readInstallation()
  const hasRouter =
    (await namespaceNames()).includes(names.router) && (await deviceNames(names.commands)).includes(names.uplink)
  if (record !== null && hasRouter) return cidr(record.pool)
  // half of a router, or one whose records are lost: no run's network can be trusted, and starting anew is safe
  await closeHost(names)
  await removeAll(names)
  for (const run of (await records.runs()).keys()) await records.removeRun(run)
  const pool = await choosePool(options.pool)
  await createRouter(names, pool)
  await records.writeInstallation({ pool: formatIpv4Cidr(pool) })
  return pool
}

/** The slots of runs whose namespace lives; what is left of the others goes. */
async function adoptRuns(held: Held, records: Records): Promise<ReadonlySet<number>> {
  const alive = await aliveRuns(records)
  for (const [run, record] of await records.runs()) {
    if (alive.has(run)) continue
    await release(held, record)
    await records.removeRun(run)
  }
  return new Set([...alive.values()].map(({ slot }) => slot))
}

async function aliveRuns(records: Records): Promise<ReadonlyMap<RunId, RunRecord>> {
  const alive = new Map<RunId, RunRecord>()
  for (const [run, record] of await records.runs()) if (await isAlive(record)) alive.set(run, record)
  return alive
}

/** Ready-made namespaces of an earlier process: nobody knows how far it came with each. */
async function removeStrangers(names: Installation, live: ReadonlySet<number>): Promise<void> {
  const slots = (await namespaceNames()).flatMap((namespace) => names.slotOf(namespace) ?? [])
  await removeSandboxes(
    names,
    slots.filter((slot) => !live.has(slot)),
  )
}

type Held = { readonly names: Installation; readonly router: RouterRules }

async function release({ names, router }: Held, record: RunRecord): Promise<void> {
  const { slot, network } = record
  await Promise.all([
    network === null ? null : router.apply(detachRules(slot, network.mark)),
    removeSandboxes(names, [slot]),
  ])
}

function policyText(spec: NetworkSpec): string {
  return JSON.stringify({ policy: spec.policy, max_connections: spec.max_connections })
}

/** Random, so that a slot's next run never has its predecessor's mark; 0 is the mark of flows that have none. */
function newMark(random: Random): number {
  return Math.max(1, random.bytes(4).readUInt32BE())
}
