import { nonEmptyText, oneOf, type Setting } from './setting.ts'

const LABEL_MAX_CHARS = 64

/** The dashboard, and how members sign in to it. */
export const SIGN_IN_SETTINGS = {
  dashboard: {
    variable: 'SANDYARD_DASHBOARD',
    flag: null,
    fallback: 'on',
    unit: 'on, off',
    meaning: 'whether the dashboard is served at /, and members sign in to it; off: only keys are accepted',
    parse: oneOf<'on' | 'off'>(['on', 'off']),
  } satisfies Setting<'on' | 'off'>,
  oidcIssuer: {
    variable: 'SANDYARD_OIDC_ISSUER',
    flag: null,
    fallback: null,
    unit: 'URL',
    meaning: 'the issuer of OpenID Connect at which members may sign in; it also needs SANDYARD_OIDC_CLIENT_ID',
    parse: (seen) => {
      const url = URL.canParse(seen) ? new URL(seen) : null
      const isPlain = url?.search === '' && url.hash === '' && url.username === '' && url.password === ''
      const isSafe = url?.protocol === 'https:' || (url?.protocol === 'http:' && LOOPBACK.test(url.hostname))
      return isPlain && isSafe ? { value: seen } : { accepted: 'an https:// URL, or an http:// URL of this machine' }
    },
  } satisfies Setting<string>,
  oidcClientId: {
    variable: 'SANDYARD_OIDC_CLIENT_ID',
    flag: null,
    fallback: null,
    unit: 'text',
    meaning:
      'the id of this installation at the issuer, where its redirect URI is /auth/oidc/callback of the dashboard',
    parse: nonEmptyText,
  } satisfies Setting<string>,
  oidcClientSecret: {
    variable: 'SANDYARD_OIDC_CLIENT_SECRET',
    flag: null,
    fallback: null,
    unit: 'text',
    meaning: 'the secret of this installation at the issuer; without one it is a public client',
    isSecret: true,
    parse: nonEmptyText,
  } satisfies Setting<string>,
  oidcLabel: {
    variable: 'SANDYARD_OIDC_LABEL',
    flag: null,
    fallback: null,
    unit: 'text',
    meaning: 'what the button to sign in calls the issuer (default: its host)',
    parse: (seen) =>
      seen.length <= LABEL_MAX_CHARS ? { value: seen } : { accepted: `at most ${String(LABEL_MAX_CHARS)} characters` },
  } satisfies Setting<string>,
} as const

const LOOPBACK = /^(?:localhost|127(?:\.\d+){3}|\[::1\])$/
