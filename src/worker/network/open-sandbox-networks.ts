import { cidr } from '../../domain/cidr.ts'
import type { RunId } from '../../domain/ids.ts'
import { NO_EGRESS_SECRETS, type EgressSecrets } from '../../domain/network/interception.ts'
import { compilePolicy, DEFAULT_POLICY } from '../../domain/network/network-policy.ts'
import type { PublishRange } from '../../domain/workers/publishing.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { Random } from '../../lib/random.ts'
import type { HostCommands } from '../processes/system-calls.ts'
import { openHostForwarding } from './host-forwarding.ts'
import { networkNames, netnsPath, slotAddresses, UPLINK_SLOT, type NetworkNames } from './network-names.ts'
import { startDnsForwarder } from './dns/dns-forwarder.ts'
import { addRouteToSandboxes, createIsolatedNamespace, removeSandboxNamespaces } from './namespaces.ts'
import { attachmentRules, routerBaseRules } from './rules/packet-filter.ts'
import { canCountConnections, canRedirectConnections, ensureRouter, removeInstallation } from './open-router.ts'
import { makePublishedPorts } from './published/published-ports.ts'
import type { ConnectionBound } from './connection-bound.ts'
import {
  isNamespaceAlive,
  openNetworkRecords,
  namespaceInode,
  type NetworkRecords,
  type RunNetworkRecord,
} from './network-records.ts'
import { makeSandboxResolvers } from './dns/sandbox-resolvers.ts'
import { makeRedirectedSandboxes } from './redirected-sandboxes.ts'
import { makeRouterRules } from './rules/router-rules.ts'
import { makeRunRules } from './rules/run-rules.ts'
import {
  cutOff,
  needsAdoption,
  newAttachment,
  parsePolicyText,
  policyText,
  release,
  type Applied,
  type DesiredNetwork,
  type RouterAccess,
} from './run-attachment.ts'
import { configureDevice, translationRules } from './shown-address.ts'
import { makeNetworkSlots } from './network-slots.ts'
import { makeHardDenials } from './rules/hard-denials.ts'
import type { OwnRanges } from './rules/own-ranges.ts'
import type { SandboxNetwork, SandboxNetworks } from './sandbox-network.ts'
import { namespaceNames, nft } from './network-commands.ts'
import { makeKeyedMutex } from '../../lib/turns/keyed-mutex.ts'

export type SandboxNetworksOptions = {
  /** The folder for this installation's records. Created when missing. */
  readonly dir: string
  /** The block for the sandboxes' addresses. If a route of the host overlaps it, a fallback block is used. */
  readonly addressPool: string
  /**
   * A prefix of 1 to 6 characters (a-z and 0-9). It distinguishes the namespaces, devices and tables of this
   * installation from those of others on the machine.
   */
  readonly namePrefix: string
  /**
   * The resolvers that answer the sandboxes' DNS queries, in order of preference. `readHostResolvers` reads those of
   * the host.
   */
  readonly hostResolvers: readonly string[]
  /** The addresses that this machine denies to sandboxes. */
  readonly ownRanges: OwnRanges
  /** Whether to refuse DNS answers that contain a special address for a public name. */
  readonly hasRebindProtection: boolean
  /** The bound of each sandbox's connections, of whatever protocol. A spec can only ask for fewer. */
  readonly connectionBound: ConnectionBound
  /** Where sandboxes may publish ports on this machine. */
  readonly publish: readonly PublishRange[]
  /** How many namespaces to keep ready for the next starts. */
  readonly prewarmCount: number
  readonly commands: HostCommands
  readonly clock: Clock
  readonly random: Random
  readonly log: Log
}

/**
 * Prepares this machine for sandbox networks, and adopts the networks of runs from an earlier process. Requires root,
 * iproute2 and nftables, so call `probeNetwork` first. `close` removes all network state when no run is left. Otherwise
 * the state stays, and the next process adopts it.
 */
export async function openSandboxNetworks(options: SandboxNetworksOptions): Promise<SandboxNetworks> {
  const names = networkNames(options.namePrefix, options.commands)
  const records = await openNetworkRecords(options.dir)
  await using opened = new AsyncDisposableStack() // a failure below closes what is open by then
  opened.defer(async () => {
    if (records.runs().size === 0) await removeInstallation(names, records)
  })
  const addressPool = await ensureRouter(names, records, options)
  await addRouteToSandboxes(names, addressPool)
  const address = slotAddresses(addressPool, UPLINK_SLOT).gateway
  const router = makeRouterRules(names)
  const runRules = makeRunRules(router)
  const redirected = makeRedirectedSandboxes({ ...options, names, router })
  opened.defer(() => redirected.close())
  const resolvers = makeSandboxResolvers({ ...options, ownAddresses: () => options.ownRanges.addresses() })
  const forwarder = await startDnsForwarder({
    ...options,
    address,
    resolvers: options.hostResolvers,
    names: redirected,
    resolversOf: (sandbox) => resolvers.of(sandbox),
  })
  opened.defer(() => forwarder.close())
  const dns = { address, port: forwarder.port }
  await nft(names.commands, routerBaseRules(dns, address), names.routerNamespace)

  const canJudgeNames = await canRedirectConnections(names, options.log)
  const bound = (await canCountConnections(names, options.log)) ? options.connectionBound : null

  let checkedAtMs = Number.NEGATIVE_INFINITY
  async function ensureHostForwarding(): Promise<void> {
    if (options.clock.monotonicMs() - checkedAtMs < FORWARDING_CHECK_INTERVAL_MS) return
    checkedAtMs = options.clock.monotonicMs()
    await openHostForwarding(names, { addressPool, dns })
  }
  await ensureHostForwarding()

  const hardDenyOf = makeHardDenials(addressPool, options.ownRanges)
  const published = makePublishedPorts(options.publish, options.random)
  opened.defer(() => published.closeAll())
  const access = { names, router, redirected, resolvers, published, addressPool }
  const live = await adoptRuns(access, records)
  const slots = makeNetworkSlots({
    names,
    addressPool,
    taken: new Set([...live.values()].map(({ slot }) => slot)),
    prewarmCount: options.prewarmCount,
    clock: options.clock,
    log: options.log,
    ensureHostForwarding,
  })
  opened.defer(() => slots.close())
  await removeUnadoptedNamespaces(names, live)
  slots.prewarm()
  // The kernel kept the rules of all runs, but the egress process and its knowledge ended with the earlier process.
  for (const [run, record] of live) {
    if (record.network !== null && needsAdoption(record.network))
      await apply(run, parsePolicyText(record.network.policy), { record, given: null })
  }

  async function newRecord(run: RunId, desired: DesiredNetwork, given: EgressSecrets): Promise<RunNetworkRecord> {
    const { spec } = desired
    const slot = spec.enabled ? await slots.allocateReady() : slots.allocate()
    try {
      if (!spec.enabled) await createIsolatedNamespace(names, slot)
      const namespace = names.sandboxNamespace(slot)
      const inode = namespaceInode(namespace)
      if (inode === null) throw new Error(`the network namespace ${namespace} vanished while it was created`)
      const network = spec.enabled ? newAttachment(desired, given, options.random) : null
      const { gateway } = slotAddresses(addressPool, slot)
      if (network !== null && spec.interface !== undefined)
        await configureDevice(names, spec.interface, { slot, gateway, addressPool })
      const record = { slot, namespace, inode, network }
      records.writeRun(run, record)
      return record
    } catch (error) {
      await removeSandboxNamespaces(names, [slot])
      slots.release(slot)
      throw error
    }
  }

  /** Opens the ports of a run. Those that were picked for it before are in its record. */
  async function publishPorts(
    run: RunId,
    { policy, ports }: Applied['spec'],
    record: RunNetworkRecord,
  ): Promise<RunNetworkRecord> {
    const wanted = record.network?.published ?? ports
    if (record.network === null || wanted === undefined) return record
    const { sandbox: address } = slotAddresses(addressPool, record.slot)
    try {
      const opened = [...(await published.open(run, { ports: wanted, address, policy }))]
      const changed = { ...record, network: { ...record.network, published: opened } }
      records.writeRun(run, changed)
      return changed
    } catch (error) {
      if (record.network.published === undefined) throw error
      options.log.warn({ run, error }, 'a sandbox runs on without its ports: another program took one meanwhile')
      return record
    }
  }

  async function apply(
    run: RunId,
    { spec, operator }: Applied,
    { record: found, given }: { readonly record: RunNetworkRecord; readonly given: EgressSecrets | null },
  ): Promise<SandboxNetwork> {
    const path = netnsPath(found.namespace)
    const { slot } = found
    const { gateway, sandbox } = slotAddresses(addressPool, slot)
    const { network } = await publishPorts(run, spec, found)
    if (network === null) return { netnsPath: path, ipv4: null, resolvers: [], published: [] }
    const { egress } = compilePolicy(spec.policy, { gateway: cidr(gateway), hardDeny: hardDenyOf(operator) })
    const rules = attachmentRules({
      slot,
      gateway,
      address: sandbox,
      mark: network.mark,
      egress,
      limits: spec,
      bound,
      redirect: network.egress ?? null,
      ...(network.published === undefined ? {} : { published: network.published }),
    })
    if (spec.dns !== undefined) resolvers.set(sandbox, spec.dns, egress)
    if (network.egress !== undefined) {
      const policy = spec.policy ?? DEFAULT_POLICY
      await redirected.add({ run, slot, address: sandbox, gateway, egress, policy, needs: network.egress, given })
    }
    const { shown } = network
    const translation = shown === undefined ? [] : translationRules({ slot, address: sandbox, shown })
    await runRules.apply(run, [...translation, ...rules])
    return { netnsPath: path, ipv4: shown ?? sandbox, resolvers: [gateway], published: network.published ?? [] }
  }

  async function attach(run: RunId, desired: DesiredNetwork, given: EgressSecrets): Promise<SandboxNetwork> {
    const { spec } = desired
    const policy = policyText(desired)
    const existing = records.readRun(run)
    if (existing !== null && (existing.network !== null) === spec.enabled && isNamespaceAlive(existing)) {
      if (existing.network === null || existing.network.policy === policy)
        return apply(run, desired, { record: existing, given })
      const changed = { ...existing, network: newAttachment(desired, given, options.random) }
      await cutOff(access, run, existing)
      records.writeRun(run, changed)
      return apply(run, desired, { record: changed, given })
    }
    if (existing !== null) await detach(run)
    return apply(run, desired, { record: await newRecord(run, desired, given), given })
  }

  async function detach(run: RunId): Promise<void> {
    const record = records.readRun(run)
    runRules.forget(run)
    if (record === null) return
    await release(access, run, record)
    await records.removeRun(run)
    slots.release(record.slot)
  }

  const mutex = makeKeyedMutex()
  const parts = opened.move()
  return {
    canJudgeNames,
    publishes: options.publish,
    attach: (run, spec, operator, given = NO_EGRESS_SECRETS) =>
      mutex.run(run, () => attach(run, { spec, operator }, given)),
    setSecrets: (run, given) => mutex.run(run, () => redirected.setSecrets(run, given)),
    onRefused: (listener) => {
      redirected.onRefused(listener)
    },
    unpublish: (run) => published.close(run),
    detach: (run) => mutex.run(run, () => detach(run)),
    list: async () => [...(await aliveRuns(records)).keys()],
    use: () => slots.use(),
    close: () => parts.disposeAsync(),
  }
}

/** The minimum time between two searches for new host devices, because a search starts four processes. */
const FORWARDING_CHECK_INTERVAL_MS = 10_000

/** Returns the runs whose namespace still exists. Removes the networks of all other runs. */
async function adoptRuns(access: RouterAccess, records: NetworkRecords): Promise<ReadonlyMap<RunId, RunNetworkRecord>> {
  const alive = await aliveRuns(records)
  for (const [run, record] of records.runs()) {
    if (alive.has(run)) continue
    await release(access, run, record)
    await records.removeRun(run)
  }
  return alive
}

async function aliveRuns(records: NetworkRecords): Promise<ReadonlyMap<RunId, RunNetworkRecord>> {
  const alive = new Map<RunId, RunNetworkRecord>()
  for (const [run, record] of records.runs()) if (isNamespaceAlive(record)) alive.set(run, record)
  return alive
}

/** Removes the unused namespaces that an earlier process created for later starts, because they may be incomplete. */
async function removeUnadoptedNamespaces(
  names: NetworkNames,
  live: ReadonlyMap<RunId, RunNetworkRecord>,
): Promise<void> {
  const kept = new Set([...live.values()].map(({ slot }) => slot))
  const slots = (await namespaceNames()).flatMap((namespace) => names.slotOf(namespace) ?? [])
  await removeSandboxNamespaces(
    names,
    slots.filter((slot) => !kept.has(slot)),
  )
}
