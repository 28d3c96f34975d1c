import { hash } from 'node:crypto'

const MINUTE_MS = 60_000
const DAY_MS = 86_400_000

/** How long a session lasts at most, in milliseconds. */
export const SESSION_MAX_MS = 30 * DAY_MS
/** How long a session lasts without a request, in milliseconds. */
export const SESSION_IDLE_MS = 7 * DAY_MS
/** A use of a session is stored only if it is at least this many milliseconds later than the stored last use. */
export const SEEN_RESOLUTION_MS = 10 * MINUTE_MS
/** How many sessions a membership has at most. Another one ends the longest unused. */
export const SESSIONS_OF_MEMBER_MAX = 20

/** How long a sign-in link works, in milliseconds. */
export const SIGN_IN_LINK_MS = 15 * MINUTE_MS
/** How long the link of an invitation works, in milliseconds. */
export const INVITATION_MS = 7 * DAY_MS

/** By what a member signed in. */
export type SignedInBy = 'link' | 'oidc'

/** The CSRF token of a session. It follows from the session's secret and reveals nothing about it, so it is not stored. */
export function csrfTokenOf(sessionToken: string): string {
  return hash('sha256', `csrf ${sessionToken}`, 'base64url')
}

/** The path of the page that signs in with a link. The token is in the fragment, which browsers send to nobody. */
export function signInPath(token: string): string {
  return `/sign-in#token=${token}`
}
