import type { ApiClient } from '../../../kubernetes/api-client.ts'
import { policiesPath } from '../namespaces/base-policies.ts'
import { LABELS } from '../pod.ts'

type Expression = { readonly key: string; readonly operator: string; readonly values?: readonly string[] }
type Selector = {
  readonly matchLabels?: Readonly<Record<string, string>>
  readonly matchExpressions?: readonly Expression[]
}
type Policy = {
  readonly metadata: { readonly name: string; readonly labels?: Readonly<Record<string, string>> }
  readonly spec: {
    readonly podSelector: Selector
    readonly egress?: readonly unknown[]
    readonly ingress?: readonly unknown[]
  }
}

/** The labels of a sandbox's Pod with a policy of its own. */
const LABELS_OF_POD = {
  [LABELS.owner]: 'owner',
  [LABELS.network]: 'network',
  [LABELS.run]: 'run',
  [LABELS.sandbox]: 'sandbox',
}

/**
 * Rejects in words if a policy that no worker made opens something to the sandboxes of a namespace. Policies add up, so requests that
 * close more would not be enforced. The one of an earlier `packaging/kubernetes/driver.yaml` is such a policy.
 */
export async function requireNoForeignPolicy(client: Pick<ApiClient, 'request'>, namespace: string): Promise<void> {
  const { items } = await client.request<{ readonly items: readonly Policy[] }>('GET', policiesPath(namespace))
  const foreign = items.find(
    ({ metadata, spec }) =>
      metadata.labels?.[LABELS.network] === undefined &&
      [...(spec.egress ?? []), ...(spec.ingress ?? [])].length > 0 &&
      selects(spec.podSelector, LABELS_OF_POD),
  )
  if (foreign !== undefined)
    throw new Error(
      `the NetworkPolicy ${foreign.metadata.name} of namespace ${namespace} opens the network of all sandboxes there, whatever they ask for: apply the packaging/kubernetes/driver.yaml of this release, or let it not select Pods with the label ${LABELS.network}`,
    )
}

/** Whether a selector of labels selects an object. An operator that isn't known counts as a match. */
function selects(
  { matchLabels = {}, matchExpressions = [] }: Selector,
  labels: Readonly<Record<string, string>>,
): boolean {
  const holds = ({ key, operator, values = [] }: Expression): boolean => {
    const value = labels[key]
    if (operator === 'In') return value !== undefined && values.includes(value)
    if (operator === 'NotIn') return value === undefined || !values.includes(value)
    return operator === 'DoesNotExist' ? value === undefined : value !== undefined || operator !== 'Exists'
  }
  return Object.entries(matchLabels).every(([key, value]) => labels[key] === value) && matchExpressions.every(holds)
}
