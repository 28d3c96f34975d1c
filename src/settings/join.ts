import { httpOrigin, integerBetween, nonEmptyText, oneOf, type Setting } from './setting.ts'

/** The settings of how a worker comes to a control plane, and how it leaves. */
export const JOIN_SETTINGS = {
  join: {
    variable: 'SANDYARD_JOIN',
    flag: 'join',
    fallback: null,
    unit: 'URL',
    meaning: 'the URL of the control plane that `sandyard worker` joins; needed at the first start only',
    parse: httpOrigin,
  } satisfies Setting<string>,
  joinToken: {
    variable: 'SANDYARD_JOIN_TOKEN',
    flag: 'token',
    fallback: null,
    unit: 'text',
    meaning: 'the join token from `sandyard worker token`; needed at the first start only',
    isSecret: true,
    parse: nonEmptyText,
  } satisfies Setting<string>,
  joinTokenFile: {
    variable: 'SANDYARD_JOIN_TOKEN_FILE',
    flag: null,
    fallback: null,
    unit: 'file',
    meaning:
      'a file with the join token instead of SANDYARD_JOIN_TOKEN, or with the token of a Kubernetes service account for the audience `sandyard`; needed at the first start only',
    parse: nonEmptyText,
  } satisfies Setting<string>,
  joinServiceAccounts: {
    variable: 'SANDYARD_JOIN_SERVICE_ACCOUNT',
    flag: null,
    fallback: null,
    unit: 'NAMESPACE/NAME,…',
    meaning:
      'the Kubernetes service accounts whose Pods may join as workers by their own tokens, separated by commas; the server must run in that cluster and may create TokenReviews (default: none)',
    parse: serviceAccounts,
  } satisfies Setting<readonly string[]>,
  shutdown: {
    variable: 'SANDYARD_SHUTDOWN',
    flag: 'shutdown',
    fallback: 'keep',
    unit: 'keep, stop, drain',
    meaning:
      'what a clean shutdown does to running sandboxes: `keep` lets them run until the next start takes them over; `stop` stops them; `drain`, for `sandyard worker` alone, takes no new ones, waits for SANDYARD_DRAIN_SECS, and stops what still runs',
    parse: oneOf(['keep', 'stop', 'drain']),
  } satisfies Setting<'keep' | 'stop' | 'drain'>,
  drainSecs: {
    variable: 'SANDYARD_DRAIN_SECS',
    flag: null,
    fallback: '300',
    unit: 's',
    meaning: 'how long a worker with SANDYARD_SHUTDOWN=drain waits for its sandboxes to end',
    parse: integerBetween(0, 604_800),
  } satisfies Setting<number>,
} as const

function serviceAccounts(seen: string): ReturnType<Setting<readonly string[]>['parse']> {
  const label = '[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?'
  const account = new RegExp(`^${label}/${label}(?:\\.${label})*$`)
  const accounts = seen.split(',')
  return accounts.every((one) => account.test(one))
    ? { value: accounts }
    : { accepted: 'NAMESPACE/NAME, such as sandyard/sandyard-worker, or several of them, separated by commas' }
}
