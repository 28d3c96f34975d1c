import { SettingError, type Config } from '../../config.ts'
import type { OidcProvider } from '../../control/sign-in/oidc.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { openOidc } from '../../oidc/open-oidc.ts'

type OidcConfig = Pick<Config, 'oidcIssuer' | 'oidcClientId' | 'oidcClientSecret' | 'oidcLabel'>

/** The provider at which members sign in, or null if the operator names none. Throws `SettingError` if the client id is missing. */
export function openProvider(config: OidcConfig, log: Log): OidcProvider | null {
  const { oidcIssuer: issuer, oidcClientId: clientId, oidcClientSecret: clientSecret, oidcLabel: label } = config
  if (issuer === null) return null
  if (clientId === null)
    throw new SettingError(
      'SANDYARD_OIDC_CLIENT_ID is missing; accepted: the id of this installation at SANDYARD_OIDC_ISSUER',
    )
  return openOidc({ issuer, clientId, clientSecret, label }, { clock: systemClock, log })
}
