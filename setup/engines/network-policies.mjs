// A small enforcer of NetworkPolicy for the tests, and for nothing else: it knows one node, whose Pods are on one bridge, and IPv4. It
// enforces while the file `enforce-policies` is in the machine's folder. It compares the API server with its rules several times a second,
// and lets an address of Pods that it doesn't know yet reach nothing, as isolation must come before a Pod starts.
// Arguments: the machine's folder, the subnet of the Pods, and the address of the node.
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { keepUpdating, makeLists } from './cluster-lists.mjs'

const [folder, subnet, node] = process.argv.slice(2)
const pollMs = 200
const off = 'add table bridge policies\ndelete table bridge policies\n'
const list = makeLists(join(folder, 'kubeconfig'))

let loaded = off
await keepUpdating(async () => {
  const rules = existsSync(join(folder, 'enforce-policies')) ? await render() : off
  if (rules !== loaded) load(rules)
  loaded = rules
}, pollMs)

function load(rules) {
  const { status, stderr } = spawnSync('nft', ['-f', '-'], { input: rules, encoding: 'utf8' })
  if (status !== 0) throw new Error(`${stderr}\n${rules}`)
}

/** The bridge of Pods tracks no connections here. So of TCP, only what begins a connection is judged, and answers of UDP need a rule. */
async function render() {
  const [pods, namespaces, policies] = await Promise.all(
    ['/api/v1/pods', '/api/v1/namespaces', '/apis/networking.k8s.io/v1/networkpolicies'].map(list),
  )
  const cluster = {
    pods: pods.filter(({ status, spec }) => status.podIP !== undefined && !spec.hostNetwork && isAlive(status)),
    namespaces: new Map(namespaces.map(({ metadata }) => [metadata.name, metadata.labels ?? {}])),
  }
  const chains = []
  const jumps = { Egress: [], Ingress: [] }
  for (const pod of cluster.pods)
    for (const direction of ['Egress', 'Ingress']) {
      const selecting = policies.filter((policy) => isolates(policy, pod, direction))
      if (selecting.length === 0) continue
      const name = `${direction}_${pod.status.podIP.replaceAll('.', '_')}`
      const rules = selecting.flatMap((policy) => rulesOf(policy, direction, cluster))
      chains.push(`  chain ${name} {\n${rules.map((rule) => `    ${rule} return\n`).join('')}    drop\n  }`)
      jumps[direction].push(`ip ${direction === 'Egress' ? 'saddr' : 'daddr'} ${pod.status.podIP} jump ${name}`)
    }
  const known = cluster.pods.map(({ status }) => status.podIP)
  const judge = [
    'ether type != ip accept',
    'ip protocol tcp tcp flags & (syn|ack) != syn accept',
    'icmp type != echo-request accept',
    `ip saddr ${subnet} ip saddr != { ${[node, ...known].join(', ')} } drop`,
    ...jumps.Egress,
    `ip saddr ${node} accept`,
    ...jumps.Ingress,
  ]
  const hooks = ['forward', 'input'].map(
    (hook) => `  chain ${hook} {\n    type filter hook ${hook} priority 0; policy accept;\n    jump judge\n  }`,
  )
  const judging = `  chain judge {\n${judge.map((rule) => `    ${rule}\n`).join('')}  }`
  return `${off}table bridge policies {\n${[...chains, judging, ...hooks].join('\n')}\n}\n`
}

function isAlive({ phase }) {
  return phase !== 'Succeeded' && phase !== 'Failed'
}

function isolates({ metadata, spec }, pod, direction) {
  const types = spec.policyTypes ?? ['Ingress', ...(spec.egress === undefined ? [] : ['Egress'])]
  const isOfNamespace = metadata.namespace === pod.metadata.namespace
  return isOfNamespace && types.includes(direction) && selects(spec.podSelector, pod.metadata.labels ?? {})
}

function selects({ matchLabels = {}, matchExpressions = [] }, labels) {
  const tests = {
    In: ({ key, values }) => values.includes(labels[key]),
    NotIn: ({ key, values }) => !values.includes(labels[key]),
    Exists: ({ key }) => key in labels,
    DoesNotExist: ({ key }) => !(key in labels),
  }
  return (
    Object.entries(matchLabels).every(([key, value]) => labels[key] === value) &&
    matchExpressions.every((expression) => tests[expression.operator](expression))
  )
}

/** The conditions under which the rules of a policy allow a packet. */
function rulesOf({ metadata, spec }, direction, cluster) {
  const [rules, peers, end] = direction === 'Egress' ? [spec.egress, 'to', 'daddr'] : [spec.ingress, 'from', 'saddr']
  return (rules ?? []).flatMap((rule) => {
    const sets =
      rule[peers] === undefined ? [''] : rule[peers].map((peer) => addressesOf(peer, { metadata, end, cluster }))
    const ports = rule.ports === undefined ? [''] : rule.ports.map(portOf)
    return sets.filter((set) => set !== null).flatMap((set) => ports.map((port) => `${set} ${port}`))
  })
}

/** The condition that an address is a peer. Null: no address is. */
function addressesOf({ ipBlock, namespaceSelector, podSelector }, { metadata, end, cluster }) {
  if (ipBlock !== undefined) {
    const { cidr, except = [] } = ipBlock
    return `ip ${end} ${cidr}${except.length === 0 ? '' : ` ip ${end} != { ${except.join(', ')} }`}`
  }
  const isOf = (namespace) =>
    namespaceSelector === undefined
      ? namespace === metadata.namespace
      : selects(namespaceSelector, cluster.namespaces.get(namespace) ?? {})
  const found = cluster.pods.filter(
    (pod) => isOf(pod.metadata.namespace) && selects(podSelector ?? {}, pod.metadata.labels ?? {}),
  )
  return found.length === 0 ? null : `ip ${end} { ${found.map(({ status }) => status.podIP).join(', ')} }`
}

function portOf({ protocol = 'TCP', port, endPort }) {
  const name = protocol.toLowerCase()
  if (port === undefined) return `ip protocol ${name}`
  return `${name} dport ${port}${endPort === undefined ? '' : `-${endPort}`}`
}
