/** The attachment of a run to the router: what its record stores of it, and how it ends. */
import type { Cidr } from '../../domain/cidr.ts'
import type { RunId } from '../../domain/ids.ts'
import type { EgressSecrets } from '../../domain/network/interception.ts'
import type { OperatorRanges } from '../../domain/network/operator-denials.ts'
import type { NetworkSpec } from '../../domain/spec/spec.ts'
import type { Random } from '../../lib/random.ts'
import { removeSandboxNamespaces } from './namespaces.ts'
import type { SandboxResolvers } from './dns/sandbox-resolvers.ts'
import { endTranslation } from './shown-address.ts'
import { slotAddresses, type NetworkNames } from './network-names.ts'
import type { RunNetworkRecord } from './network-records.ts'
import { cutOffRules, detachmentRules } from './rules/packet-filter.ts'
import { egressNeedsOf, type RedirectedSandboxes } from './redirected-sandboxes.ts'
import type { PublishedPorts } from './published/published-ports.ts'
import type { RouterRules } from './rules/router-rules.ts'

export type DesiredNetwork = { readonly spec: NetworkSpec; readonly operator: OperatorRanges }
/** The part of it that the packet filter depends on. */
export type Applied = {
  readonly spec: Pick<NetworkSpec, 'policy' | 'max_connections' | 'max_udp_connections' | 'dns' | 'ports'>
  readonly operator: OperatorRanges
}

export type RouterAccess = {
  readonly names: NetworkNames
  readonly router: RouterRules
  readonly redirected: RedirectedSandboxes
  readonly resolvers: SandboxResolvers
  readonly published: PublishedPorts
  readonly addressPool: Cidr
}

type Attachment = NonNullable<RunNetworkRecord['network']>

/** Ends all connections of a run and refuses new ones. */
export async function cutOff(access: RouterAccess, run: RunId, { slot, network }: RunNetworkRecord): Promise<void> {
  if (network === null) return
  await access.published.close(run)
  await access.router.apply(cutOffRules(attachmentOf(access, slot, network)))
  const { sandbox } = slotAddresses(access.addressPool, slot)
  access.redirected.remove(sandbox)
  access.resolvers.remove(sandbox)
}

export async function release(access: RouterAccess, run: RunId, { slot, network }: RunNetworkRecord): Promise<void> {
  await Promise.all([
    access.published.close(run),
    network === null
      ? null
      : access.router.apply([
          ...detachmentRules(attachmentOf(access, slot, network)),
          ...endShown(access, slot, network),
        ]),
    removeSandboxNamespaces(access.names, [slot]),
  ])
  const { sandbox } = slotAddresses(access.addressPool, slot)
  access.redirected.remove(sandbox)
  access.resolvers.remove(sandbox)
}

function endShown({ addressPool }: RouterAccess, slot: number, { shown }: Attachment): readonly string[] {
  const { sandbox } = slotAddresses(addressPool, slot)
  return shown === undefined ? [] : endTranslation({ slot, address: sandbox, shown })
}

function attachmentOf({ addressPool }: RouterAccess, slot: number, network: Attachment) {
  const { mark, egress, published } = network
  const { gateway, sandbox: address } = slotAddresses(addressPool, slot)
  const ports = published === undefined ? {} : { published }
  return { slot, address, mark, ...ports, redirected: egress === undefined ? null : { gateway, named: egress.named } }
}

export function newAttachment({ spec, operator }: DesiredNetwork, given: EgressSecrets, random: Random): Attachment {
  const shown = spec.interface?.ipv4_address ?? null
  const attachment = {
    mark: newConnectionMark(random),
    policy: policyText({ spec, operator }),
    ...(shown === null ? {} : { shown }),
  }
  const egress = egressNeedsOf(spec, given)
  return egress === null ? attachment : { ...attachment, egress }
}

export function policyText({ spec: { policy, max_connections, max_udp_connections, dns }, operator }: Applied): string {
  return JSON.stringify({ policy, max_connections, max_udp_connections, dns, operator })
}

/** Whether a restarted worker must apply an attachment again, because the kernel doesn't keep all of it. */
export function needsAdoption({ egress, published, policy }: Attachment): boolean {
  return egress !== undefined || published !== undefined || parsePolicyText(policy).spec.dns !== undefined
}

/** Reads what `policyText` wrote. */
export function parsePolicyText(text: string): Applied {
  const { operator, ...spec } = JSON.parse(text) as Applied['spec'] & Pick<Applied, 'operator'>
  return { spec, operator }
}

/**
 * Returns a random mark for a run's connections. The next run in the same slot therefore has another mark. The mark is
 * never 0, which means that a connection has no mark.
 */
function newConnectionMark(random: Random): number {
  return Math.max(1, random.bytes(4).readUInt32BE())
}
