import { CONNECTION_SETTINGS } from './connections.ts'
import { JOIN_SETTINGS } from './join.ts'
import { KUBERNETES_SETTINGS } from './kubernetes.ts'
import { LIMIT_SETTINGS } from './limits.ts'
import { SERVER_SETTINGS } from './server.ts'
import type { Setting } from './setting.ts'
import { SIGN_IN_SETTINGS } from './sign-in.ts'
import { WORKER_SETTINGS } from './worker.ts'

/** The settings that were given, as texts by their variables. Each text is valid by itself. */
type Given = Readonly<Record<string, string>>
/** Describes how given settings contradict each other, with what is accepted. Null: they don't. */
type Rule = (given: Given) => string | null
type AnySetting = Setting<unknown>

/** Finds settings of which one makes another one pointless, or that ask for two things at once. Null if there are none. */
export function findContradiction(given: Given): string | null {
  return RULES.map((rule) => rule(given)).find((message) => message !== null) ?? null
}

/** Whether a setting was given a value other than its default. */
function isSet(given: Given, { variable, fallback }: AnySetting): boolean {
  return (given[variable] ?? fallback) !== fallback
}

function together(one: AnySetting, other: AnySetting): Rule {
  return (given) =>
    isSet(given, one) === isSet(given, other)
      ? null
      : `${one.variable} and ${other.variable} belong together: set both or neither`
}

function needs(setting: AnySetting, needed: AnySetting): Rule {
  return (given) =>
    isSet(given, setting) && !isSet(given, needed)
      ? `${setting.variable} has no effect without ${needed.variable}: set both, or only the latter`
      : null
}

function exclusive(one: AnySetting, other: AnySetting): Rule {
  return (given) =>
    isSet(given, one) && isSet(given, other)
      ? `${one.variable} and ${other.variable} exclude each other: choose one`
      : null
}

/** Refuses a given part above its whole. A smaller whole than the part's default is accepted: it is the limit of both. */
function atMost(part: Setting<number>, whole: Setting<number>): Rule {
  return (given) => {
    const most = given[whole.variable] ?? whole.fallback
    const seen = given[part.variable]
    return seen === undefined || most === null || Number(seen) <= Number(most)
      ? null
      : `${part.variable} is "${seen}"; accepted: at most the value of ${whole.variable}, which is ${most}`
  }
}

/** Refuses a setting that the given value of another one makes pointless. */
function pointlessIf(setting: AnySetting, { variable }: AnySetting, value: string): Rule {
  return (given) =>
    isSet(given, setting) && given[variable] === value
      ? `${setting.variable} has no effect while ${variable} is "${value}": set only one of them`
      : null
}

const { dashboard, oidcIssuer, oidcClientId, oidcClientSecret, oidcLabel } = SIGN_IN_SETTINGS
const { tlsCert, tlsKey, insecure } = CONNECTION_SETTINGS
const { kubernetesRegistry, kubernetesRegistryListen, kubernetesRegistryCert, kubernetesRegistryKey } =
  KUBERNETES_SETTINGS
const { databaseUrl, databaseOwnerUrl, apiKey, firstKeyFile } = SERVER_SETTINGS

const RULES: readonly Rule[] = [
  together(oidcIssuer, oidcClientId),
  needs(oidcClientSecret, oidcIssuer),
  needs(oidcLabel, oidcIssuer),
  pointlessIf(oidcIssuer, dashboard, 'off'),
  together(tlsCert, tlsKey),
  exclusive(insecure, tlsCert),
  together(kubernetesRegistryCert, kubernetesRegistryKey),
  needs(kubernetesRegistryCert, kubernetesRegistry),
  needs(kubernetesRegistryListen, kubernetesRegistry),
  needs(databaseOwnerUrl, databaseUrl),
  exclusive(apiKey, firstKeyFile),
  exclusive(JOIN_SETTINGS.joinToken, JOIN_SETTINGS.joinTokenFile),
  exclusive(WORKER_SETTINGS.volumePoolGib, WORKER_SETTINGS.sharedVolumesDir),
  atMost(WORKER_SETTINGS.diskMib, WORKER_SETTINGS.diskMaxMib),
  atMost(WORKER_SETTINGS.imageMaxGib, WORKER_SETTINGS.imageStoreGib),
  atMost(WORKER_SETTINGS.sessionsPerSandbox, WORKER_SETTINGS.sessionsPerOrg),
  atMost(LIMIT_SETTINGS.channelsPerSandbox, LIMIT_SETTINGS.channelsPerOrg),
  atMost(LIMIT_SETTINGS.logStreamsPerOrg, LIMIT_SETTINGS.logStreamCapacity),
  atMost(LIMIT_SETTINGS.orgBodiesMib, LIMIT_SETTINGS.bodiesMib),
  atMost(LIMIT_SETTINGS.connectionsPerAddress, LIMIT_SETTINGS.connectionCapacity),
  pointlessIf(LIMIT_SETTINGS.keyRequestBurst, LIMIT_SETTINGS.keyRequestsPerSec, '0'),
  pointlessIf(LIMIT_SETTINGS.orgRequestBurst, LIMIT_SETTINGS.orgRequestsPerSec, '0'),
  pointlessIf(LIMIT_SETTINGS.refusedKeyBurst, LIMIT_SETTINGS.refusedKeysPerSec, '0'),
]
