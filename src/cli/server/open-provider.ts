import type { Config } from '../../config.ts'
import type { OidcProvider } from '../../control/sign-in/oidc.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { openOidc } from '../../oidc/open-oidc.ts'

type OidcConfig = Pick<Config, 'oidcIssuer' | 'oidcClientId' | 'oidcClientSecret' | 'oidcLabel'>

/** The provider at which members sign in, or null if the operator names none. */
export function openProvider(config: OidcConfig, log: Log): OidcProvider | null {
  const { oidcIssuer: issuer, oidcClientId: clientId, oidcClientSecret: clientSecret, oidcLabel: label } = config
  if (issuer === null || clientId === null) return null // the settings belong together
  return openOidc({ issuer, clientId, clientSecret, label }, { clock: systemClock, log })
}
