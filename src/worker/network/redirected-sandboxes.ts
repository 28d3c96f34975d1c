import type { RunId } from '../../domain/ids.ts'
import { NO_EGRESS_SECRETS, type EgressSecrets } from '../../domain/network/interception.ts'
import { allowsQuery } from '../../domain/network/judge-query.ts'
import type { PacketRule } from '../../domain/network/network-policy.ts'
import type { NetworkPolicy, NetworkSpec } from '../../domain/spec/spec.ts'
import { hasName, nameOf } from '../../domain/network/name-pattern.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { EgressRefusal } from '../egress/messages.ts'
import { openEgress } from '../egress/open-egress.ts'
import { readNamedAddresses } from './dns/dns-answers.ts'
import type { QueriedNames } from './dns/dns-forwarder.ts'
import type { EgressNeeds } from './network-records.ts'
import { netnsPath, type NetworkNames } from './network-names.ts'
import { namedRules, routeRedirected, tieRules } from './rules/redirect-rules.ts'
import type { RouterRules } from './rules/router-rules.ts'
import { makeTiedElements, type TiedElements } from './rules/tied-elements.ts'

/** A sandbox whose connections go to the egress process. */
export type RedirectedSandbox = {
  readonly run: RunId
  readonly slot: number
  /** The sandbox's own address. */
  readonly address: string
  readonly gateway: string
  readonly egress: readonly PacketRule[]
  readonly policy: NetworkPolicy
  readonly needs: EgressNeeds
  /** Null: not known yet. Nothing passes meanwhile, if the run needs them. */
  readonly given: EgressSecrets | null
}

/** What a run needs of the egress process. Null: addresses decide, and nothing is read or changed. */
export function egressNeedsOf(spec: NetworkSpec, given: EgressSecrets): EgressNeeds | null {
  const { interception } = given
  const needsInterception = interception !== null
  const named = (spec.policy?.rules ?? []).filter(({ destination }) => nameOf(destination) !== null).length
  const needsSecrets = spec.secrets.length > 0 || needsInterception
  if (!spec.enabled || (named === 0 && !needsSecrets)) return null
  const closed = interception?.block_quic === true ? [...interception.intercepted_ports] : []
  return {
    named,
    strict: spec.strict,
    closed_udp_ports: closed,
    needs_secrets: needsSecrets,
    needs_interception: needsInterception,
  }
}

type RefusalListener = (run: RunId, refusal: EgressRefusal) => void

/** The sandboxes whose connections go to the egress process, and the names that they looked up. */
export type RedirectedSandboxes = QueriedNames & {
  /** Judges the connections of a sandbox from now on. May be repeated with other rules. */
  add(sandbox: RedirectedSandbox): Promise<void>
  /** Replaces the secrets of a run, for its new connections. An unknown run is fine. */
  setSecrets(run: RunId, given: EgressSecrets): Promise<void>
  /** Ends the connections of a sandbox. An unknown address is fine. */
  remove(address: string): void
  onRefused(listener: RefusalListener): void
  close(): Promise<void>
}

/**
 * The most elements of sets that one answer adds: its addresses for each rule that matches its name. A sandbox chooses both, and the
 * commands for a thousand rules and addresses would stop the worker for seconds.
 */
const TIED_MAX = 4_096

const DNS_PORT = 53
/** Why an answer was withheld, as a sandbox's log tells it. */
const TOO_MANY_ADDRESSES = {
  reason: 'the names that the sandbox looked up have too many addresses',
  violation: null,
  request: null,
} as const

export function makeRedirectedSandboxes(options: {
  readonly names: NetworkNames
  readonly router: RouterRules
  readonly clock: Clock
  readonly log: Log
}): RedirectedSandboxes {
  const { names, router } = options
  const sandboxes = new Map<string, RedirectedSandbox>()
  const elements = new Map<string, TiedElements>()
  const listeners: RefusalListener[] = []
  const namespace = netnsPath(names.routerNamespace)
  const egress = openEgress({ ...options, namespace, onRefused: tellListeners })

  function tellListeners(address: string, refusal: EgressRefusal): void {
    const run = sandboxes.get(address)?.run
    if (run !== undefined) for (const listener of listeners) listener(run, refusal)
  }

  function countElements(address: string, sets: readonly number[], tied: ReadonlyMap<string, number>): boolean {
    const own = elements.get(address) ?? makeTiedElements(options.clock)
    elements.set(address, own)
    return own.add(sets, tied)
  }

  async function add(sandbox: RedirectedSandbox): Promise<void> {
    const { address, gateway, needs } = sandbox
    sandboxes.set(address, sandbox)
    const isKnown = sandbox.given !== null && (sandbox.given.interception !== null || !needs.needs_interception)
    const given = isKnown ? sandbox.given : needs.needs_secrets ? null : NO_EGRESS_SECRETS
    const rules = { gateway, strict: needs.strict, egress: sandbox.egress }
    await egress.set(address, given === null ? null : { ...rules, ...given })
  }

  return {
    async add(sandbox) {
      if (sandboxes.size === 0) await routeRedirected(names)
      await add(sandbox)
    },
    async setSecrets(run, given) {
      const sandbox = [...sandboxes.values()].find((one) => one.run === run)
      if (sandbox === undefined) return
      // a key that the control plane can't read now is no reason to let requests pass unread
      const interception = given.interception ?? sandbox.given?.interception ?? null
      await add({ ...sandbox, given: { ...given, interception } })
    },
    remove(address) {
      sandboxes.delete(address)
      elements.delete(address)
      egress.remove(address)
    },
    onRefused(listener) {
      listeners.push(listener)
    },
    allows(address, name) {
      const sandbox = sandboxes.get(address)
      return sandbox === undefined || allowsQuery(sandbox.policy, name)
    },
    reads: (address) => sandboxes.has(address),
    async learn(address, name, answer) {
      const sandbox = sandboxes.get(address)
      if (sandbox === undefined) return true
      const found = readNamedAddresses(answer)
      if (found === null) return false
      const tied = new Map(found.map((one) => [one.address, Math.max(1, one.ttlSecs)]))
      // The egress process judges TCP alone.
      const matching = namedRules(sandbox.egress).flatMap((rule, index) =>
        hasName(rule.name, name) && isForDatagrams(rule) ? [index] : [],
      )
      const isFew = matching.length * tied.size <= TIED_MAX && countElements(address, matching, tied)
      if (!isFew || !egress.tie(address, name, found)) {
        tellListeners(address, {
          ...TOO_MANY_ADDRESSES,
          destination: { address: sandbox.gateway, port: DNS_PORT },
          sni: name,
        })
        return false
      }
      const lines = matching.flatMap((index) => tieRules(sandbox.slot, index, tied))
      const isCurrent = (): boolean => sandboxes.get(address)?.egress === sandbox.egress // another run has its own
      if (lines.length > 0) await router.applyFor(address, { lines, isCurrent })
      return true
    },
    close: () => egress.close(),
  }
}

function isForDatagrams({ protocols }: PacketRule): boolean {
  return protocols.length === 0 || protocols.some((protocol) => protocol !== 'tcp')
}
