import { isApiError } from '../../../kubernetes/api-error.ts'
import { persistRequest } from '../../../kubernetes/persist-request.ts'
import { ENFORCED_STANDARD } from '../namespaces/org-namespace.ts'
import { makeCanaryPod } from './canary-objects.ts'
import type { CanaryDeps } from './canary-pods.ts'
import { CANARY_RULES } from './rules-canary.ts'

/**
 * Rejects in words if the namespace of the worker admits no Pod that loads rules. Asks by a dry run, which makes
 * nothing. A namespace that refuses the same Pod without rules too, because its quota is full for example, says nothing
 * about rules, and is left to the canary.
 */
export async function requireRulesAdmitted(deps: CanaryDeps, signal: AbortSignal): Promise<void> {
  const { namespace } = deps
  const refused = await refusalOf(deps, CANARY_RULES, signal)
  if (refused === null || (await refusalOf(deps, null, signal)) !== null) return
  throw new Error(
    `the namespace ${namespace} admits no Pods with the capability NET_ADMIN, by which SANDYARD_KUBERNETES_NETWORK=rules closes their network: ${refused}. Give it the label ${ENFORCED_STANDARD}=privileged, or set SANDYARD_KUBERNETES_NETWORK=prove`,
  )
}

/** How the API server refuses a Pod with these rules. Null: it would admit it. */
async function refusalOf(
  deps: CanaryDeps,
  rules: readonly string[] | null,
  signal: AbortSignal,
): Promise<string | null> {
  const { client, namespace, helperImage: image, runtimeClass } = deps
  const pod = makeCanaryPod(deps, 'client', { name: `sandyard-canary-${deps.newSuffix()}`, image, runtimeClass, rules })
  const path = `/api/v1/namespaces/${namespace}/pods?dryRun=All`
  try {
    await persistRequest(() => client.request('POST', path, pod, { signal }), { ...deps, signal })
    return null
  } catch (error) {
    if (isApiError(error, 403)) return error.message
    throw error
  }
}
