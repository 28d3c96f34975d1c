import { hasName } from '../../domain/network/name-pattern.ts'
import { allowsQuery } from '../../domain/network/judge-query.ts'
import type { PacketRule } from '../../domain/network/network-policy.ts'
import type { NetworkPolicy, NetworkSpec } from '../../domain/spec/spec.ts'
import { nameOf } from '../../domain/network/name-pattern.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { openEgress } from '../egress/open-egress.ts'
import { readNamedAddresses } from './dns-answers.ts'
import type { QueriedNames } from './dns-forwarder.ts'
import { netnsPath, type NetworkNames } from './network-names.ts'
import { namedRules, routeRedirected, tieRules } from './redirect-rules.ts'
import type { RouterRules } from './router-rules.ts'

/** A sandbox whose connections go to the egress process. */
export type RedirectedSandbox = {
  readonly slot: number
  /** The sandbox's own address. */
  readonly address: string
  readonly gateway: string
  readonly egress: readonly PacketRule[]
  readonly policy: NetworkPolicy
  readonly strict: boolean
}

/** Whether the policy of a sandbox needs more than addresses. */
export function isRedirected({ enabled, policy }: NetworkSpec): boolean {
  return enabled && (policy?.rules ?? []).some(({ destination }) => nameOf(destination) !== null)
}

/** The sandboxes whose connections go to the egress process, and the names that they looked up. */
export type RedirectedSandboxes = QueriedNames & {
  /** Judges the connections of a sandbox from now on. May be repeated with other rules. */
  add(sandbox: RedirectedSandbox): Promise<void>
  /** Ends the connections of a sandbox. An unknown address is fine. */
  remove(address: string): void
  close(): Promise<void>
}

export function makeRedirectedSandboxes(options: {
  readonly names: NetworkNames
  readonly router: RouterRules
  readonly clock: Clock
  readonly log: Log
}): RedirectedSandboxes {
  const { names, router } = options
  const sandboxes = new Map<string, RedirectedSandbox>()
  const egress = openEgress({ ...options, namespace: netnsPath(names.routerNamespace) })

  return {
    async add(sandbox) {
      const { address, gateway, strict } = sandbox
      if (sandboxes.size === 0) await routeRedirected(names)
      sandboxes.set(address, sandbox)
      await egress.set(address, { gateway, strict, egress: sandbox.egress })
    },
    remove(address) {
      sandboxes.delete(address)
      egress.remove(address)
    },
    allows(address, name) {
      const sandbox = sandboxes.get(address)
      return sandbox === undefined || allowsQuery(sandbox.policy, name)
    },
    async learn(address, name, answer) {
      const sandbox = sandboxes.get(address)
      if (sandbox === undefined) return true
      const found = readNamedAddresses(answer)
      if (found === null || !egress.tie(address, name, found)) return false
      const tied = new Map(found.map((one) => [one.address, Math.max(1, one.ttlSecs)]))
      // The egress process judges TCP alone.
      const lines = namedRules(sandbox.egress).flatMap((rule, index) =>
        hasName(rule.name, name) && isForDatagrams(rule) ? tieRules(sandbox.slot, index, tied) : [],
      )
      if (lines.length > 0) await router.apply(lines)
      return true
    },
    close: () => egress.close(),
  }
}

function isForDatagrams({ protocols }: PacketRule): boolean {
  return protocols.length === 0 || protocols.some((protocol) => protocol !== 'tcp')
}
