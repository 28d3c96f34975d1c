/**
 * The cookie of a session. Over https its name has the prefix `__Host-`: no other host, not even a preview at a subdomain, can then set
 * it (RFC 6265bis, section 4.1.3.2).
 */
const NAME = 'sandyard_session'
const SECURE_NAME = `__Host-${NAME}`

function nameOf(isSecure: boolean): string {
  return isSecure ? SECURE_NAME : NAME
}

/** The value of a session's cookie, or null. Null too if there are several: one of them was set by somebody else. */
export function sessionTokenIn(cookies: string | undefined, isSecure: boolean): string | null {
  return cookieIn(cookies, nameOf(isSecure))
}

/** The value of a cookie, or null if there is none or several with different values. */
export function cookieIn(cookies: string | undefined, name: string): string | null {
  const found = (cookies ?? '').split(';').flatMap((part) => {
    const at = part.indexOf('=')
    return part.slice(0, at).trim() === name ? [part.slice(at + 1).trim()] : []
  })
  const [only, ...others] = new Set(found)
  return only === undefined || only === '' || others.length > 0 ? null : only
}

/** The `Set-Cookie` header that stores a session's secret. Scripts can't read the cookie. */
export function sessionCookie(token: string, { isSecure, lastsMs }: { isSecure: boolean; lastsMs: number }): string {
  return setCookie(nameOf(isSecure), token, { isSecure, path: '/', lastsMs })
}

/** The `Set-Cookie` header that deletes a session's cookie. */
export function endedSessionCookie(isSecure: boolean): string {
  return setCookie(nameOf(isSecure), '', { isSecure, path: '/', lastsMs: 0 })
}

/** Formats a `Set-Cookie` header. The browser sends such a cookie to this host alone, and not with requests of other sites' pages. */
export function setCookie(
  name: string,
  value: string,
  { isSecure, path, lastsMs }: { readonly isSecure: boolean; readonly path: string; readonly lastsMs: number },
): string {
  const maxAge = String(Math.max(0, Math.floor(lastsMs / 1000)))
  return `${name}=${value}; Path=${path}; Max-Age=${maxAge}; HttpOnly; SameSite=Lax${isSecure ? '; Secure' : ''}`
}
