import { SettingError, type Config } from '../../config.ts'
import type { ReviewToken } from '../../control/workers/worker-join.ts'
import { makeReviewToken } from './review-tokens.ts'

/**
 * How Pods may join as workers, by SANDYARD_JOIN_SERVICE_ACCOUNT. Empty: they may not. Throws `SettingError` outside of
 * Kubernetes.
 */
export function joiningPods(
  { joinServiceAccounts: accounts }: Pick<Config, 'joinServiceAccounts'>,
  env: NodeJS.ProcessEnv,
): { readonly reviewToken?: ReviewToken } {
  if (accounts === null) return {}
  const { KUBERNETES_SERVICE_HOST: host = '', KUBERNETES_SERVICE_PORT: port = '' } = env
  if (host === '' || port === '')
    throw new SettingError(
      `SANDYARD_JOIN_SERVICE_ACCOUNT is '${accounts.join(',')}', and this server is not in Kubernetes: KUBERNETES_SERVICE_HOST is missing. Accepted: no value`,
    )
  return { reviewToken: makeReviewToken({ accounts, host, port: Number(port) }) }
}
