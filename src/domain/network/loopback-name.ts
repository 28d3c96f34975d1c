const LOOPBACK = /^(?:localhost|127(?:\.\d{1,3}){3}|::1|\[::1\])$/i

/** Whether a host names the machine itself: `localhost` or a loopback address, with or without the brackets of a URL. */
export function isLoopbackName(host: string): boolean {
  return LOOPBACK.test(host)
}
