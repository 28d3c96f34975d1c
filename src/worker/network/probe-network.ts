import type { Ability } from '../../domain/abilities.ts'
import { compilePolicy, DEFAULT_POLICY } from '../../domain/network/network-policy.ts'
import { cidr } from '../../domain/cidr.ts'
import type { Random } from '../../lib/random.ts'
import { localCommands, tryCommand } from '../../lib/run-command.ts'
import { attachmentRules, routerBaseRules } from './rules/packet-filter.ts'
import { deleteNamespace, ipBatch, nft } from './network-commands.ts'

type NetworkProbe = {
  /**
   * Whether sandboxes can have networks on this machine. Even if this is true, `missing` may list abilities that the
   * machine lacks.
   */
  readonly ok: boolean
  /** The requirements that the machine doesn't meet, one sentence for each. */
  readonly missing: readonly string[]
  readonly abilities: readonly Ability[]
}

/**
 * Checks whether this machine supports sandbox networks: root, iproute2, nsenter, nftables, and a kernel that accepts
 * the router's rules. Creates a temporary namespace for the check and changes nothing else. May be repeated.
 */
export async function probeNetwork(random: Random): Promise<NetworkProbe> {
  const missing = await missingTools()
  if (process.getuid?.() !== 0) missing.unshift('sandbox networks need root')
  if (missing.length > 0) return { ok: false, missing, abilities: [] }
  const namespace = `sy-probe-${random.bytes(4).toString('hex')}`
  try {
    await ipBatch(localCommands, [`netns add ${namespace}`])
    await ipBatch(localCommands, ['link add v1 type veth peer name up0'], namespace)
    await nft(
      localCommands,
      [...routerBaseRules({ address: '127.0.0.1', port: DNS_PORT }, '127.0.0.1'), ...sampleRules(null)],
      namespace,
    )
    const counts = await failureOf(nft(localCommands, sampleRules(1), namespace))
    const redirects = await failureOf(nft(localCommands, sampleRules(null, true), namespace))
    const abilities: readonly Ability[] = ['network_off', 'network_policy']
    return {
      ok: true,
      missing: [
        ...(counts === null ? [] : [`the kernel can't count connections (nft_connlimit): ${counts}`]),
        ...(redirects === null ? [] : [`the kernel can't redirect connections (nft_tproxy): ${redirects}`]),
      ],
      abilities: [
        ...abilities,
        ...(counts === null ? (['network_max_connections', 'network_max_udp_connections'] as const) : []),
        ...(redirects === null ? (['network_domains'] as const) : []),
      ],
    }
  } catch (error) {
    return { ok: false, missing: [`this kernel refuses sandbox networks: ${messageOf(error)}`], abilities: [] }
  } finally {
    await deleteNamespace(localCommands, namespace)
  }
}

const DNS_PORT = 53

function sampleRules(maxConnections: number | null, isRedirected = false): readonly string[] {
  const gateway = '10.209.0.5'
  const { egress } = compilePolicy(DEFAULT_POLICY, { gateway: cidr(gateway), hardDeny: [] })
  const attachment = {
    slot: 1,
    gateway,
    address: '10.209.0.6',
    mark: 1,
    egress,
    limits: { max_connections: maxConnections },
    bound: null,
  }
  return attachmentRules({ ...attachment, redirect: isRedirected ? { closed_udp_ports: [443] } : null })
}

const TOOLS = [
  ['ip', 'iproute2', '-V'],
  ['nft', 'nftables', '--version'],
  ['nsenter', 'util-linux', '--version'],
] as const

async function missingTools(): Promise<string[]> {
  const failures = await Promise.all(
    TOOLS.map(([file, , version]) => failureOf(tryCommand(file, [version], { timeoutMs: 5_000 }))),
  )
  return TOOLS.filter((_, index) => failures[index] !== null).map(
    ([file, name]) => `the command ${file} (package ${name})`,
  )
}

async function failureOf(work: Promise<unknown>): Promise<string | null> {
  try {
    await work
    return null
  } catch (error) {
    return messageOf(error)
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
